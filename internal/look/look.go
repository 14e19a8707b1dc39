// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package look is how Conch's pages look: colours and typography, in one style sheet that every page embeds.
package look

import _ "embed"

// CSS is the style sheet: custom properties for colours, light and dark, and the typography of plain elements. It loads nothing. The colours
// --s0 to --s7 are of things beside each other, in this order; they have a contrast of 4.5 to 1 against the page.
//
//go:embed look.css
var CSS string
