// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// quantity is a number that measures something: one with a unit behind it, a count out of a count, or one with decimals.
var quantity = regexp.MustCompile(`(?:^|[^\w.,/:#-])((?:below )?-?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+))(?:(-|\s)?(us|ms|s|seconds?|minutes?|hours?|microseconds?|milliseconds?|%|percent|req/s|requests|million|KiB|MiB|GiB|KB|MB|GB|TB|MB/s|times|cores?|points|of [0-9]+)\b|(%))?`)

// notProse are the parts of a page in which numbers are no claims of it: generated tables, comments, code, addresses of links.
var notProse = []*regexp.Regexp{
	regexp.MustCompile(`(?s)<!-- table [a-z]+ -->\n.*?<!-- end -->`),
	regexp.MustCompile("(?s)```.*?```"),
	regexp.MustCompile(`(?m)^(?:    |\t).*$`),
	regexp.MustCompile(`(?s)<!--.*?-->`),
	regexp.MustCompile("`[^`\n]*`"),
	regexp.MustCompile(`\]\([^)]*\)`),
}

// givenList is the comment of a page that says which quantities are no measurements of the project, and what they are instead: a line each,
// quantities with commas between them, a colon, and the reason, such as "25 ms, 70 ms: SLOs of Symphony's table 2".
var givenList = regexp.MustCompile(`(?s)<!-- given\n(.*?)-->`)

// Uncited lists what is wrong with the numbers of a page that measure something: those that cite no figure (see [Cite]) and that the page
// does not list as given, and those that it lists and does not have.
func Uncited(page string) []string {
	given := map[string]bool{} // whether it was met
	var wrong []string
	for _, list := range givenList.FindAllStringSubmatch(page, -1) {
		for line := range strings.Lines(list[1]) {
			quantities, reason, ok := strings.Cut(strings.TrimSpace(line), ": ")
			if !ok || reason == "" {
				wrong = append(wrong, fmt.Sprintf("the given line %q says no reason: QUANTITIES: REASON", strings.TrimSpace(line)))
			}
			for q := range strings.SplitSeq(quantities, ", ") {
				given[q] = false
			}
		}
	}
	text := withoutCitations(page)
	for _, part := range notProse {
		text = part.ReplaceAllString(text, "\x60")
	}
	for _, m := range quantity.FindAllStringSubmatch(text, -1) {
		digits := strings.TrimPrefix(m[1], "below ")
		if m[3] == "" && m[4] == "" && !strings.Contains(digits, ".") {
			continue
		}
		q := strings.Trim(digits, ",")
		switch {
		case m[4] != "" || m[3] == "%":
			q += "%"
		case m[3] != "":
			q += " " + m[3]
		}
		if _, ok := given[q]; ok {
			given[q] = true
		} else {
			wrong = append(wrong, fmt.Sprintf("%q cites no figure: put <!-- NAME --> of a figure behind it, take it out, or list it as given", q))
		}
	}
	for q, met := range given {
		if !met {
			wrong = append(wrong, fmt.Sprintf("%q is listed as given, and the page does not have it", q))
		}
	}
	slices.Sort(wrong)
	return slices.Compact(wrong)
}

// withoutCitations is a page without the numbers that Cite renews.
func withoutCitations(page string) string {
	var b strings.Builder
	for line := range strings.Lines(page) {
		cells := strings.Split(line, "|")
		for i := 1; i+1 < len(cells); i++ {
			if _, ok := namesFigure(cells[i]); ok {
				cell := strings.TrimSpace(cells[i+1])
				cells[i+1] = number.ReplaceAllString(cell, "")
			}
		}
		b.WriteString(strings.Join(cells, "|"))
	}
	return marked.ReplaceAllString(b.String(), "")
}
