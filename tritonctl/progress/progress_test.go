// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package progress_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/tritonctl/progress"
)

// terminal keeps what is written by several goroutines.
type terminal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(p)
}

func (t *terminal) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// seen is what a terminal of one line shows after all that was written.
func seen(t *terminal) string {
	lines := strings.Split(t.String(), "\r\x1b[K")
	return lines[len(lines)-1]
}

func wide() int { return 120 }

func TestTheRestIsEstimatedByHowFastTheWorkWent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out terminal
		task := progress.Begin(&out, wide, "calibrating")
		defer task.End()
		require.Equal(t, "calibrating", seen(&out))
		time.Sleep(500 * time.Millisecond)
		// An earlier run measured half of it; that says nothing of how fast this one is.
		task.At(30, 60, "conv_1")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, "calibrating: conv_1 [==========          ]  50%", seen(&out))
		time.Sleep(9 * time.Second)
		task.At(36, 60, "conv_7")
		require.Equal(t, "calibrating: conv_7 [============        ]  60%, about 40 s left", seen(&out))
		// Time goes on while a step takes long, and the estimate with it; it never says that nothing is left.
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Contains(t, seen(&out), "about 31 s left")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Contains(t, seen(&out), "about 1 s left")
	})
}

func TestWorkOfUnknownSizeShowsItsTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out terminal
		task := progress.Begin(&out, wide, "waiting")
		defer task.End()
		time.Sleep(3200 * time.Millisecond)
		task.At(0, 0, "for \x1b[31mgpu0\a")
		synctest.Wait()
		require.Equal(t, "waiting: for [31mgpu0, 3 s so far", seen(&out))
		task.End()
		task.End()
		require.Equal(t, "", seen(&out), "the line is cleared")
		wrote := out.String()
		time.Sleep(time.Minute)
		require.Equal(t, wrote, out.String(), "nothing is written after the end")
	})
}

func TestWorkThatEndsByItselfNeedsNoReports(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out terminal
		task := progress.Begin(&out, wide, "recording")
		defer task.End()
		task.Lasts(time.Minute)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		require.Equal(t, "recording [=====               ]  25%, about 45 s left", seen(&out))
		time.Sleep(50 * time.Second)
		synctest.Wait()
		require.Equal(t, "recording [====================] 100%", seen(&out))
	})
}

func TestALineFitsTheTerminal(t *testing.T) {
	for _, columns := range []int{200, 80, 61, 60, 40, 20, 0} {
		bubble.Test(t, func(t *testing.T) {
			var out terminal
			task := progress.Begin(&out, func() int { return columns }, "verifying "+strings.Repeat("模型", 20))
			defer task.End()
			time.Sleep(200 * time.Millisecond)
			task.At(1, 3, "batch (1,1)")
			time.Sleep(3200 * time.Millisecond)
			task.At(2, 3, "batch (2,3)")
			line := seen(&out)
			require.Contains(t, line, "66%, about 3 s left")
			if columns > 30 {
				width := 0
				for _, r := range line {
					width++
					if r > 0x2e80 {
						width++
					}
				}
				require.Less(t, width, columns, line)
			}
			require.Equal(t, columns == 0 || columns > 60, strings.Contains(line, "["), line)
		})
	}
}

func TestOtherOutputIsNotMixedIntoTheLine(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out terminal
		task := progress.Begin(&out, wide, "asking")
		defer task.End()
		failed := errors.New("full")
		require.ErrorIs(t, task.Aside(func() error { fmt.Fprintln(&out, "snapshot 1: good"); return failed }), failed)
		require.Contains(t, out.String(), "\r\x1b[Ksnapshot 1: good\n\r\x1b[Kasking")
	})
}

func TestWithoutATerminalNothingIsWritten(t *testing.T) {
	var none *progress.Task
	none.At(1, 2, "x")
	ran := false
	require.NoError(t, none.Aside(func() error { ran = true; return nil }))
	require.True(t, ran)
	none.End()
}

func TestManyStepsAreFewDrawings(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out terminal
		task := progress.Begin(&out, wide, "simulating")
		for i := range 10_000 {
			task.At(float64(i), 10_000, "")
			time.Sleep(time.Millisecond)
		}
		task.End()
		require.Less(t, strings.Count(out.String(), "\r"), 115)
	})
}
