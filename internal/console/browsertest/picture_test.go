package browsertest

import (
	"bytes"
	"cmp"
	"flag"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
)

// update takes the pictures of the documents again.
var update = flag.Bool("update", false, "take the pictures in docs/console anew")

const (
	// pictures is where the documents have them.
	pictures = "../../../docs/console"
	// pictureLimit is the most bytes of one: they are loaded with the document.
	pictureLimit = 100_000
)

// picture takes the picture of a page, if -update says so. It fails the test if there is none otherwise, or if it is
// too large. Pixels are not compared: the pages tell the time.
func (b *tab) picture(name string) {
	b.t.Helper()
	file := filepath.Join(pictures, name+".png")
	if *update {
		ctx, cancel := b.within()
		defer cancel()
		taken, err := chromedp.Run(ctx, b.screenshot())
		if err == nil {
			taken, err = smaller(taken)
		}
		if err == nil {
			err = os.WriteFile(file, taken, 0o644)
		}
		if err != nil {
			b.t.Fatal(err)
		}
	}
	info, err := os.Stat(file)
	switch {
	case err != nil:
		b.t.Errorf("%v; `make screenshots` takes it", err)
	case info.Size() > pictureLimit:
		b.t.Errorf("%s has %d bytes, want at most %d", file, info.Size(), pictureLimit)
	}
}

// tall limits the height of a picture, in CSS pixels: of a list it shows the beginning.
const tall = 1000

// screenshot takes the beginning of a page, as a window shows it that is as tall as the page, within reason.
func (b *tab) screenshot() chromedp.Action[[]byte] {
	b.t.Helper()
	height := must[int64](b, "tall => Math.min(tall, Math.ceil(document.body.getBoundingClientRect().height))", tall)
	must[any](b, "() => { document.activeElement?.blur(); scrollTo(0, 0) }")
	b.size(height)
	return chromedp.CaptureScreenshot()
}

// colours is the limit of colours in a PNG with a palette.
const colours = 256

// smaller returns a picture with a palette. Pages have few colours, but for the edges of letters.
func smaller(data []byte) ([]byte, error) {
	from, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	bounds := from.Bounds()
	count := map[color.RGBA]int{}
	at := func(x, y int) color.RGBA {
		return color.RGBAModel.Convert(from.At(x, y)).(color.RGBA) //nolint:forcetypeassert // as the model says
	}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			count[at(x, y)]++
		}
	}
	palette, index := reduce(count)
	to := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			to.SetColorIndex(x, y, index[at(x, y)])
		}
	}
	var out bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(&out, to); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// reduce chooses a palette, one colour after the other: the worst represented so far, by its number of pixels and its
// distance from the chosen ones. It returns the place of the nearest chosen colour for each.
func reduce(count map[color.RGBA]int) (palette color.Palette, index map[color.RGBA]uint8) {
	all := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G),
			cmp.Compare(a.B, b.B))
	})
	far := make([]int, len(all))
	for i := range far {
		far[i] = 1 << 18
	}
	index = map[color.RGBA]uint8{}
	for len(palette) < min(colours, len(all)) {
		worst := 0
		for i, c := range all {
			if count[c]*far[i] > count[all[worst]]*far[worst] {
				worst = i
			}
		}
		chosen := all[worst]
		for i, c := range all {
			if d := distance(c, chosen); d < far[i] {
				far[i], index[c] = d, uint8(len(palette))
			}
		}
		palette = append(palette, chosen)
	}
	return palette, index
}

// distance is the squared distance of two colours.
func distance(a, b color.RGBA) int {
	r, g, bl := int(a.R)-int(b.R), int(a.G)-int(b.G), int(a.B)-int(b.B)
	return r*r + g*g + bl*bl
}

// Every picture belongs to a page.
func TestPicturesAreOfPages(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(pictures, "*.png"))
	if err != nil {
		t.Fatal(err)
	}
	taken := map[string]bool{}
	for _, l := range looks() {
		for _, v := range views() {
			if l.pictured() && v.name != "" {
				taken[v.name+"-"+l.String()+".png"] = true
			}
		}
	}
	for _, file := range files {
		if !taken[filepath.Base(file)] {
			t.Errorf("%s is of no page any more", file)
		}
	}
}
