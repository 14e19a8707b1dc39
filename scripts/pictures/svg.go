// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"image/color"
	"strings"

	uv "github.com/charmbracelet/ultraviolet"
)

// A cell in pixels, and the room around the screen.
const (
	cellWidth, cellHeight = 9, 19
	margin                = 12
)

// look is how a cell looks.
type look struct {
	fore, back color.Color // nil: the terminal's own
	bold       bool
}

// draw is an animated SVG of the frames: each is shown for a period, one after the other, without end. A viewer that does not animate shows the
// first frame. Lines that are in several frames are written once.
func draw(frames []frame, title string) []byte {
	var defs, shown bytes.Buffer
	lines := map[string]int{}
	line := func(cells *[columns]uv.Cell) int {
		text := drawLine(cells)
		if text == "" {
			return -1
		}
		if id, ok := lines[text]; ok {
			return id
		}
		id := len(lines)
		lines[text] = id
		fmt.Fprintf(&defs, "<g id=\"l%d\">%s</g>\n", id, text)
		return id
	}
	for i := range frames {
		if i > 0 {
			fmt.Fprintf(&shown, "<g class=\"f\" style=\"animation-delay:%gs\"><use href=\"#bg\"/>", period.Seconds()*float64(i))
		}
		for y := range rows {
			if id := line(&frames[i][y]); id >= 0 {
				fmt.Fprintf(&shown, "<use href=\"#l%d\" y=\"%d\"/>", id, y*cellHeight)
			}
		}
		if i > 0 {
			shown.WriteString("</g>")
		}
		shown.WriteByte('\n')
	}
	width, height := columns*cellWidth+2*margin, rows*cellHeight+2*margin
	var out bytes.Buffer
	fmt.Fprintf(&out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n<title>%s</title>\n", width, height, width, height, escape(title))
	fmt.Fprintf(&out, "<style>text{font:15px ui-monospace,SFMono-Regular,Menlo,Consolas,\"DejaVu Sans Mono\",monospace;white-space:pre;fill:%s}"+
		".b{font-weight:bold}.f{visibility:hidden;animation:f %gs steps(1) infinite}@keyframes f{0%%{visibility:visible}%.4g%%{visibility:hidden}}"+
		"@media(prefers-reduced-motion:reduce){.f{animation:none}}</style>\n", hex(foreground), period.Seconds()*float64(len(frames)), 100/float64(len(frames)))
	fmt.Fprintf(&out, "<defs><rect id=\"bg\" x=\"-%d\" y=\"-%d\" width=\"%d\" height=\"%d\" rx=\"8\" fill=\"%s\"/>\n%s</defs>\n", margin, margin, width, height, hex(background), defs.String())
	fmt.Fprintf(&out, "<g transform=\"translate(%d %d)\"><use href=\"#bg\"/>\n%s</g></svg>\n", margin, margin, shown.String())
	return out.Bytes()
}

// drawLine draws the cells of a line at the height 0.
func drawLine(cells *[columns]uv.Cell) string {
	var b strings.Builder
	for x := 0; x < columns; {
		l := lookOf(cells[x])
		end := x + 1
		for end < columns && lookOf(cells[end]) == l {
			end++
		}
		if l.back != nil {
			fmt.Fprintf(&b, `<rect x="%d" width="%d" height="%d" fill="%s"/>`, x*cellWidth, (end-x)*cellWidth, cellHeight, hex(l.back))
		}
		for x < end {
			x = drawWord(&b, cells, x, end, l)
		}
	}
	return b.String()
}

// drawWord draws what begins at x, up to two spaces after each other or a block, and gives where it ends.
func drawWord(b *strings.Builder, cells *[columns]uv.Cell, x, end int, l look) int {
	if blank(cells[x]) {
		return x + 1
	}
	fill := ""
	if l.fore != nil {
		fill = fmt.Sprintf(` fill="%s"`, hex(l.fore))
	}
	if height := block(cells[x].Content); height > 0 {
		stop := x + 1
		for stop < end && cells[stop].Content == cells[x].Content {
			stop++
		}
		style := fill
		if fill == "" {
			style = fmt.Sprintf(` fill="%s"`, hex(foreground))
		}
		if cells[x].Content == "░" {
			style += ` opacity=".3"`
		}
		full := float64(cellHeight - 2)
		fmt.Fprintf(b, `<rect x="%d" y="%.3g" width="%d" height="%.3g"%s/>`, x*cellWidth, 1+full*(1-height), (stop-x)*cellWidth, full*height, style)
		return stop
	}
	stop := x
	var text strings.Builder
	for stop < end && block(cells[stop].Content) == 0 && (!blank(cells[stop]) || stop+1 < end && !blank(cells[stop+1]) && block(cells[stop+1].Content) == 0) {
		if blank(cells[stop]) {
			text.WriteByte(' ')
		}
		text.WriteString(strings.TrimSpace(cells[stop].Content))
		stop++
	}
	class := ""
	if l.bold {
		class = ` class="b"`
	}
	if fill != "" {
		fill = fmt.Sprintf(` style="fill:%s"`, hex(l.fore))
	}
	fmt.Fprintf(b, `<text x="%d" y="14" textLength="%d"%s%s>%s</text>`, x*cellWidth, (stop-x)*cellWidth, class, fill, escape(text.String()))
	return stop
}

func blank(c uv.Cell) bool { return strings.TrimSpace(c.Content) == "" }

// block is the height of a block character, as part of the cell's; 0: it is none.
func block(text string) float64 {
	letters := []rune(text)
	switch {
	case len(letters) != 1:
		return 0
	case letters[0] == '░':
		return 1
	case letters[0] >= '▁' && letters[0] <= '█':
		return float64(letters[0]-'▁'+1) / 8
	}
	return 0
}

func lookOf(c uv.Cell) look {
	l := look{fore: c.Style.Fg, back: c.Style.Bg, bold: c.Style.Attrs&uv.AttrBold != 0}
	if c.Style.Attrs&uv.AttrReverse != 0 {
		l.fore, l.back = l.back, l.fore
		if l.fore == nil {
			l.fore = background
		}
		if l.back == nil {
			l.back = foreground
		}
	}
	return l
}

func hex(c color.Color) string {
	r, g, b, _ := c.RGBA()
	return fmt.Sprintf("#%02x%02x%02x", r>>8, g>>8, b>>8)
}

func escape(text string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(text)) // a buffer takes all
	return b.String()
}
