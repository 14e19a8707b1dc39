// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"image/color"

	"charm.land/lipgloss/v2"
)

// styles of a screen. Without colours, as with NO_COLOR, what is selected is reversed and headings are bold.
type styles struct {
	tones                      [bad + 1]lipgloss.Style
	head, selected, tab, title lipgloss.Style
}

// newStyles are for a dark or a light background; the colours are those of Conch's pages.
func newStyles(dark bool) styles {
	pick := lipgloss.LightDark(dark)
	colour := func(light, dark string) color.Color { return pick(lipgloss.Color(light), lipgloss.Color(dark)) }
	fore := func(light, dark string) lipgloss.Style { return lipgloss.NewStyle().Foreground(colour(light, dark)) }
	return styles{
		tones: [...]lipgloss.Style{
			plain: lipgloss.NewStyle(), soft: fore("#57606a", "#a3adb8"), good: fore("#00714f", "#2fcf9f"), warn: fore("#7a5b00", "#f0c84b"), bad: fore("#b3261e", "#ff8a80"),
		},
		head:     fore("#57606a", "#a3adb8").Bold(true),
		selected: lipgloss.NewStyle().Reverse(true),
		tab:      fore("#0067a3", "#56b4e9").Bold(true).Reverse(true),
		title:    lipgloss.NewStyle().Bold(true),
	}
}
