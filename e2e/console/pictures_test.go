// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"os"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// TestPictures takes the pictures of README and docs (`make pictures`), once the load has run for a while.
func TestPictures(t *testing.T) {
	into := os.Getenv("CONCH_SHOW")
	if into == "" {
		t.Skip("make pictures takes them")
	}
	t.Setenv("CONCH_PICTURES", into)
	conch := running(t)
	b := open(t, ui(t, conch.Admin))
	b.look("light", 1280, 720)
	b.screen("late")
	time.Sleep(3 * time.Minute) // so that some minutes are to be seen
	b.picture("console-late")
	b.screen("gpus")
	time.Sleep(time.Second)
	b.picture("console-gpus")
	b.screen("timeline")
	b.click(".choice button", "3 s")
	b.do(chromedp.Focus("canvas"), chromedp.KeyEvent(" "))
	b.settled()
	b.picture("console-timeline")
}
