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

// update has the pictures of the documents taken anew.
var update = flag.Bool("update", false, "take the pictures in docs/console anew")

const (
	// pictures is where the documents have them.
	pictures = "../../docs/console"
	// pictureLimit is the most bytes of one: they are loaded with the document.
	pictureLimit = 100_000
)

// picture takes the picture of a page, if -update says so. It fails the test if there is none otherwise, or if it is too
// large. Pixels are not compared: the pages tell the time.
func (b *tab) picture(name string) {
	b.t.Helper()
	file := filepath.Join(pictures, name+".png")
	if *update {
		ctx, cancel := b.within()
		defer cancel()
		taken, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
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

// colours is what a PNG with a palette can have.
const colours = 256

// smaller returns a picture with the colours only that it has most of. Pages have few, but for the edges of letters.
func smaller(data []byte) ([]byte, error) {
	from, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	bounds := from.Bounds()
	count := map[color.RGBA]int{}
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(from.At(x, y)).(color.RGBA) } //nolint:forcetypeassert // as the model says
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			count[at(x, y)]++
		}
	}
	all := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int { return cmp.Compare(count[b], count[a]) })
	palette := make(color.Palette, 0, colours)
	for _, c := range all[:min(colours, len(all))] {
		palette = append(palette, c)
	}
	index := map[color.RGBA]uint8{}
	for _, c := range all {
		index[c] = uint8(palette.Index(c))
	}
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

// Every picture belongs to a page, and the documents show each.
func TestPicturesAreShown(t *testing.T) {
	document, err := os.ReadFile("../../docs/console.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(pictures, "*.png"))
	if err != nil {
		t.Fatal(err)
	}
	taken := map[string]bool{}
	for _, l := range looks() {
		for _, v := range views() {
			if l.pictured() {
				taken[v.name+"-"+l.String()+".png"] = true
			}
		}
	}
	for _, file := range files {
		name := filepath.Base(file)
		if !taken[name] {
			t.Errorf("%s is of no page any more", file)
		}
		if !bytes.Contains(document, []byte("console/"+name)) {
			t.Errorf("docs/console.md does not show %s", name)
		}
	}
}
