package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
)

// tablePage is the number of rows of a list that are measured before they are printed.
const tablePage = 100

// column is a column of a table. On a narrow terminal columns are left out, one by one, and then cut.
type column struct {
	title  string
	right  bool // right-aligned
	middle bool // cut in the middle
	wide   int  // least width
	least  int  // width to which it may be cut; 0: never cut
	spare  int  // order of leaving out, from 1; 0: never
}

// cell is a column's content in a row.
type cell struct {
	text string
	tone tone
}

// table prints rows in columns as wide as their content. On a terminal they fit; elsewhere nothing is cut or left out.
type table struct {
	w       io.Writer
	screen  screen
	columns []column
	titled  bool // it begins with the titles of the columns

	shown  []int // the columns not left out; nil before the first printed row
	widths []int // by column: the widest text so far
	rows   [][]cell
	err    error // why the table cannot be written
}

// tableFor returns a table for a command's output.
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

// add adds a row, with a cell for each column. A full page is printed at once; flush returns an error of that.
func (t *table) add(cells ...cell) {
	if t.rows = append(t.rows, cells); len(t.rows) >= tablePage {
		_ = t.flush() // the final flush returns the error again
	}
}

// flush prints the added rows. Columns get wider from page to page, never narrower. After a failure, every further call
// fails too.
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

// excess returns by how much the shown columns exceed the screen at these widths.
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

// choose sets the shown columns: all, except spare ones if even cut columns would not fit.
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

// fit returns the columns' widths on the screen. The last ones are cut first.
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

// cutText cuts a text to a width, with … in place of the cut: at the end, or in the middle.
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

// textWidth returns the width of a text in columns of a terminal.
func textWidth(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

// runeWidth returns the width of a character in columns: two for East Asian ones and most pictures.
func runeWidth(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case unicode.In(r, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana),
		r >= 0x3000 && r <= 0x303e, r >= 0xff01 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6, r >= 0x1f300 &&
			r <= 0x1faff:
		return 2
	}
	return 1
}
