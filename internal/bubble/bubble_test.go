// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package bubble_test

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/conch-serving/conch/internal/bubble"
)

// Eight goroutines find their timers due at the same instants. With synctest.Test
// alone the race detector ends the program in the first rounds.
func TestTimersThatAreDueAtTheSameInstant(t *testing.T) {
	for range 5 {
		bubble.Test(t, func(t *testing.T) {
			var wait sync.WaitGroup
			for range 8 {
				wait.Go(func() {
					ticker, timer := time.NewTicker(time.Millisecond), time.NewTimer(time.Millisecond)
					defer ticker.Stop()
					for range 200 {
						time.Sleep(time.Millisecond)
						select {
						case <-ticker.C:
						default:
						}
						select {
						case <-timer.C:
							timer.Reset(time.Millisecond)
						default:
						}
					}
				})
			}
			wait.Wait()
		})
	}
}

func TestProcessorsComeBack(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Run("bubble", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			if n := runtime.GOMAXPROCS(0); n != 1 {
				t.Errorf("%d processors in the bubble, want 1", n)
			}
		})
	})
	if n := runtime.GOMAXPROCS(0); n != before {
		t.Errorf("%d processors after the bubble, %d before", n, before)
	}
}
