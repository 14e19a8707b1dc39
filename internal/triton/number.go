// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton

import "strings"

// LeadingInt is the number that a text begins with, after white space, as C's atoi and C++'s stol read it; empty or a mere sign where there is none.
func LeadingInt(text string) string {
	text = strings.TrimLeft(text, " \t\n\v\f\r")
	end := 0
	for end < len(text) && (text[end] >= '0' && text[end] <= '9' || end == 0 && (text[end] == '-' || text[end] == '+')) {
		end++
	}
	return text[:end]
}
