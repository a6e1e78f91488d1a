package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
)

// tablePage is how many rows of a list share the widths of their columns before they are printed.
const tablePage = 100

// column is a column of a table. What a terminal is too narrow for is left out, column by column, and then cut.
type column struct {
	title  string
	right  bool // its texts end in line
	middle bool // its texts are cut in the middle
	wide   int  // it is at least so wide
	least  int  // it may be cut to so much; 0: it is not cut
	spare  int  // from 1 on: the first one is left out first; 0: it never is
}

// cell is what a column has in a row.
type cell struct {
	text string
	tone tone
}

// table prints rows in columns as wide as what is in them. On a terminal they fit; elsewhere nothing is cut or left out.
type table struct {
	w       io.Writer
	screen  screen
	columns []column
	titled  bool // it begins with the titles of the columns

	shown  []int // the columns that are not left out; nil before the first row is printed
	widths []int // of each column: of its widest text until now
	rows   [][]cell
	err    error // why the table cannot be written
}

// tableFor returns a table for where a command writes to.
func tableFor(w io.Writer, titled bool, columns ...column) *table {
	return newTable(w, screenOf(w), titled, columns...)
}

// newTable returns a table for a screen.
func newTable(w io.Writer, s screen, titled bool, columns ...column) *table {
	return &table{w: w, screen: s, columns: columns, titled: titled, widths: make([]int, len(columns))}
}

// row adds a row, with a text, a number or a cell for each column.
func (t *table) row(texts ...any) {
	cells := make([]cell, len(texts))
	for i, text := range texts {
		if c, ok := text.(cell); ok {
			cells[i] = c
		} else {
			cells[i].text = fmt.Sprint(text)
		}
	}
	t.add(cells...)
}

// add adds a row, with a cell for each column. It is printed with those before it once they are a page; if that fails, flush says so.
func (t *table) add(cells ...cell) {
	if t.rows = append(t.rows, cells); len(t.rows) >= tablePage {
		_ = t.flush() // the last one says so again
	}
}

// flush prints the rows that were added. Columns get wider from page to page, never narrower. Once it has failed, it fails again.
func (t *table) flush() error {
	if len(t.rows) == 0 || t.err != nil {
		t.rows = t.rows[:0]
		return t.err
	}
	first := t.shown == nil
	if first && t.titled {
		titles := make([]cell, len(t.columns))
		for i, c := range t.columns {
			titles[i].text = c.title
		}
		t.rows = slices.Insert(t.rows, 0, titles)
	}
	for i, c := range t.columns {
		t.widths[i] = max(t.widths[i], c.wide)
		for _, row := range t.rows {
			t.widths[i] = max(t.widths[i], textWidth(row[i].text))
		}
	}
	if first {
		t.choose()
	}
	widths := t.fit()
	var b strings.Builder
	for _, row := range t.rows {
		t.print(&b, row, widths)
	}
	t.rows = t.rows[:0]
	_, t.err = io.WriteString(t.w, b.String())
	return t.err
}

// gap separates columns.
const gap = "  "

// excess returns by how much the columns that are shown are too wide for the screen at these widths.
func (t *table) excess(width func(i int) int) int {
	if t.screen.width == 0 {
		return 0
	}
	sum := len(gap) * (len(t.shown) - 1)
	for _, i := range t.shown {
		sum += width(i)
	}
	return sum - t.screen.width
}

// choose says which columns are shown: all, but for those that can be spared where even cut ones would be too many.
func (t *table) choose() {
	for i := range t.columns {
		t.shown = append(t.shown, i)
	}
	narrowest := func(i int) int {
		if least := t.columns[i].least; least > 0 {
			return min(least, t.widths[i])
		}
		return t.widths[i]
	}
	for t.excess(narrowest) > 0 {
		out := -1
		for at, i := range t.shown {
			if s := t.columns[i].spare; s > 0 && (out < 0 || s < t.columns[t.shown[out]].spare) {
				out = at
			}
		}
		if out < 0 {
			return
		}
		t.shown = slices.Delete(t.shown, out, out+1)
	}
}

// fit returns the widths that the columns get on the screen. The last ones are cut first, and any that must be.
func (t *table) fit() []int {
	widths := slices.Clone(t.widths)
	over := t.excess(func(i int) int { return widths[i] })
	for _, must := range []bool{false, true} {
		for _, i := range slices.Backward(t.shown) {
			least := t.columns[i].least
			if must {
				least = 1
			}
			if least > 0 && over > 0 && widths[i] > least {
				cut := min(over, widths[i]-least)
				widths[i] -= cut
				over -= cut
			}
		}
	}
	return widths
}

func (t *table) print(b *strings.Builder, row []cell, widths []int) {
	for at, i := range t.shown {
		text, padding := row[i].text, ""
		if t.screen.width > 0 {
			text = cutText(text, widths[i], t.columns[i].middle)
		}
		last := at == len(t.shown)-1
		if t.columns[i].right || !last {
			padding = strings.Repeat(" ", widths[i]-textWidth(text))
		}
		text = t.screen.paint(text, row[i].tone)
		if t.columns[i].right {
			b.WriteString(padding + text)
		} else {
			b.WriteString(text + padding)
		}
		if !last {
			b.WriteString(gap)
		}
	}
	b.WriteByte('\n')
}

// cutText cuts a text to a width, with … where something is missing: at the end, or in the middle.
func cutText(s string, width int, middle bool) string {
	if textWidth(s) <= width {
		return s
	}
	tail := 0
	if middle {
		tail = width / 2
	}
	runes := []rune(s)
	from, n := 0, 0
	for ; n+runeWidth(runes[from]) < width-tail; from++ {
		n += runeWidth(runes[from])
	}
	to, n := len(runes), 0
	for ; to > from && n+runeWidth(runes[to-1]) <= tail; to-- {
		n += runeWidth(runes[to-1])
	}
	return string(runes[:from]) + "…" + string(runes[to:])
}

// textWidth returns how many columns of a terminal a text takes.
func textWidth(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

// runeWidth returns how many columns a character takes: East Asian ones and most pictures take two.
func runeWidth(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case unicode.In(r, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana),
		r >= 0x3000 && r <= 0x303e, r >= 0xff01 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6, r >= 0x1f300 && r <= 0x1faff:
		return 2
	}
	return 1
}
