// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// What a program draws in its terminal, before and after a key, comes into the picture: words, colours, what is reversed, blocks.
func TestARecordingHasWhatTheTerminalShows(t *testing.T) {
	defer goleak.VerifyNone(t)
	program := exec.Command("sh", "-c", `stty -echo; printf '\033[1mbold\033[0m  two words \033[38;2;255;0;0mred <&>\033[0m\n\033[7mchosen\033[0m █▄░'; read key; printf '\033[2J\033[Hthen %s' "$key"; sleep 60`)
	frames, err := record(t.Context(), program, []step{{at: 3500 * time.Millisecond, keys: "k\n"}}, 3*time.Second, 5*time.Second)
	var ended *exec.ExitError
	require.ErrorAs(t, err, &ended, "Ctrl-C ends it")
	require.Len(t, frames, 4)
	svg := string(draw(frames, "a <title>"))
	for _, want := range []string{
		"<title>a &lt;title&gt;</title>", `class="b">bold</text>`, ">two words</text>", `style="fill:#ff0000">red &lt;&amp;&gt;</text>`,
		`<rect x="0" width="54" height="19" fill="#e8ecf0"/>`, `style="fill:#14181d">chosen</text>`, `opacity=".3"`, ">then k</text>",
	} {
		require.Contains(t, svg, want)
	}
	require.Equal(t, 1, strings.Count(svg, ">two words</text>"), "a line that several frames show is written once")
	require.Equal(t, 3, strings.Count(svg, `class="f"`), "the first frame is there without animation, too")
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
	}
}
