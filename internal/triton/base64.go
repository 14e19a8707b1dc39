// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton

import (
	"encoding/base64"
	"strings"
)

// LenientBase64 decodes what of the text is base64 and passes over the rest, as
// Triton does with the files and handles that come over HTTP.
func LenientBase64(text string) []byte {
	digits := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '+' || r == '/' {
			return r
		}
		return -1
	}, text)
	if len(digits)%4 == 1 {
		digits = digits[:len(digits)-1] // six bits are no byte
	}
	content, _ := base64.RawStdEncoding.DecodeString(digits) // nothing is left that it could refuse
	return content
}
