package main

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// sample prints a table with the columns of ls, and rows of several lengths.
func sample(s screen) string {
	var b strings.Builder
	tab := &table{w: &b, screen: s, titled: true, widths: make([]int, 5), columns: []column{
		{title: "DUE", spare: 1}, {title: "IN"}, {title: "ATTEMPT", spare: 2}, {title: "KEY", middle: true, least: 20},
		{title: "PAYLOAD", least: 12, spare: 3},
	}}
	for _, row := range [][]cell{
		{{text: "2026-11-20T09:00:00.000Z"}, {"late 3m 12s", toneBad}, {text: "1"}, {text: "shop:order:timeout:42"},
			{text: `{"order":42}`}},
		{{text: "2026-12-30T09:51:00.000Z"}, {text: "40d 51m"}, {"3 retry", toneOdd},
			{text: "shop:order:payment-reminder:7f3c9a1e-55d0-4b"},
			{text: `{"order":42,"customer":"Ernst","total":99}`}},
		{{text: "2026-12-30T09:51:00.001Z"}, {text: "40d 51m"}, {text: "1"}, {text: "店:订单:超时:四十二"},
			{text: "订单四十二，还没有付款，请提醒顾客"}},
	} {
		tab.add(row...)
	}
	if err := tab.flush(); err != nil {
		panic(err)
	}
	return b.String()
}

func TestTableFits(t *testing.T) {
	for _, test := range []struct {
		name   string
		screen screen
		want   string
	}{
		{"no terminal", screen{}, `
DUE                       IN           ATTEMPT  KEY                                           PAYLOAD
2026-11-20T09:00:00.000Z  late 3m 12s  1        shop:order:timeout:42                         {"order":42}
2026-12-30T09:51:00.000Z  40d 51m      3 retry  shop:order:payment-reminder:7f3c9a1e-55d0-4b  {"order":42,"customer":"Ernst","total":99}
2026-12-30T09:51:00.001Z  40d 51m      1        店:订单:超时:四十二                           订单四十二，还没有付款，请提醒顾客
`},
		{"60 columns", screen{width: 60}, `
IN           ATTEMPT  KEY                       PAYLOAD
late 3m 12s  1        shop:order:timeout:42     {"order":42}
40d 51m      3 retry  shop:order:…9a1e-55d0-4b  {"order":42…
40d 51m      1        店:订单:超时:四十二       订单四十二…
`},
		{"80 columns", screen{width: 80}, `
IN           ATTEMPT  KEY                                           PAYLOAD
late 3m 12s  1        shop:order:timeout:42                         {"order":42}
40d 51m      3 retry  shop:order:payment-reminder:7f3c9a1e-55d0-4b  {"order":42…
40d 51m      1        店:订单:超时:四十二                           订单四十二…
`},
		{"200 columns", screen{width: 200}, `
DUE                       IN           ATTEMPT  KEY                                           PAYLOAD
2026-11-20T09:00:00.000Z  late 3m 12s  1        shop:order:timeout:42                         {"order":42}
2026-12-30T09:51:00.000Z  40d 51m      3 retry  shop:order:payment-reminder:7f3c9a1e-55d0-4b  {"order":42,"customer":"Ernst","total":99}
2026-12-30T09:51:00.001Z  40d 51m      1        店:订单:超时:四十二                           订单四十二，还没有付款，请提醒顾客
`},
	} {
		if got := "\n" + sample(test.screen); got != test.want {
			t.Errorf("%s:%s\nwant%s", test.name, got, test.want)
		}
	}
}

func TestTableColours(t *testing.T) {
	got := sample(screen{colours: true})
	for _, want := range []string{"  \x1b[31mlate 3m 12s\x1b[0m  1  ", "  \x1b[33m3 retry\x1b[0m  shop"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%q", want, got)
		}
	}
}

// Whatever is in a table, it fits the terminal.
func TestTableAlwaysFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		width := rapid.IntRange(20, 250).Draw(t, "width")
		columns := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) column {
			return column{
				title: rapid.StringN(1, 10, -1).Draw(t, "title"), right: rapid.Bool().Draw(t, "right"),
				middle: rapid.Bool().Draw(t, "middle"),
				wide:   rapid.IntRange(0, 5).Draw(t, "wide"), least: rapid.IntRange(0, 20).Draw(t, "least"),
				spare: rapid.IntRange(0, 3).Draw(t, "spare"),
			}
		}), 1, 6).Draw(t, "columns")
		tab := &table{w: &b, screen: screen{width: width}, titled: true, columns: columns,
			widths: make([]int, len(columns))}
		text := rapid.StringOfN(rapid.RuneFrom([]rune("abc :é店\u0301🦄")), 0, 60, -1)
		for range rapid.IntRange(1, 5).Draw(t, "rows") {
			row := make([]cell, len(columns))
			for i := range row {
				row[i].text = text.Draw(t, "text")
			}
			tab.add(row...)
			if rapid.Bool().Draw(t, "flush") {
				if err := tab.flush(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := tab.flush(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := textWidth(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("%d columns of %d: %q", n, width, line)
			}
		}
	})
}

func TestCutText(t *testing.T) {
	for _, test := range []struct {
		text   string
		width  int
		middle bool
		want   string
	}{
		{"shop:order", 10, false, "shop:order"},
		{"shop:order", 9, false, "shop:ord…"},
		{"shop:order", 9, true, "shop…rder"},
		{"shop:order", 8, true, "sho…rder"},
		{"shop:order", 1, true, "…"},
		{"店订单超时", 9, false, "店订单超…"},
		{"店订单超时", 8, false, "店订单…"},
		{"店订单超时", 8, true, "店…超时"},
	} {
		if got := cutText(test.text, test.width, test.middle); got != test.want {
			t.Errorf("%q in %d columns is %q, want %q", test.text, test.width, got, test.want)
		}
	}
}
