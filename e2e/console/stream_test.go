// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// aMinuteLater puts the clock of a page forward by which it knows that nothing was heard.
const aMinuteLater = `!!(performance.now = ((now) => () => now() + 60000)(performance.now.bind(performance)))`

// The space bar pauses the timeline wherever the focus is, but on what takes the key itself.
func TestTheSpaceBarPauses(t *testing.T) {
	b := open(t, ui(t, newFake([]string{"m"}, []string{"gpu0"}).serve(t)))
	b.screen("timeline")
	b.sees("live; the space bar pauses")
	b.do(chromedp.KeyEvent(" "))
	b.sees("stands at")
	b.do(chromedp.KeyEvent(kb.ArrowLeft))
	b.until(`!!document.querySelector('.tip')`, "an arrow key steps to no execution")
	b.do(chromedp.KeyEvent(" "))
	b.sees("live; the space bar pauses")
}

// A conch that has just begun has executed nothing before: its figures are of the time since.
func TestTheTimelineOfAConchThatHasJustBegun(t *testing.T) {
	f := newFake([]string{"m"}, []string{"gpu0"})
	now := time.Now()
	f.whole[api.TopicEvents] = []any{api.Event{ID: 1, Time: now.Add(-5 * time.Second), Kind: "started"}}
	f.whole[api.TopicExecutions] = []any{api.Executed{Partition: "gpu0.0", Model: "m", Start: float64(now.UnixMilli())/1000 - 5, End: float64(now.UnixMilli()) / 1000, Rows: 1, Requests: 1}}
	b := open(t, ui(t, f.serve(t)))
	b.screen("timeline")
	b.do(chromedp.KeyEvent(" "))
	b.sees("stands at")
	seconds := js[float64](b, `Number(document.body.innerText.match(/executions of (\d+) seconds ended in time/)[1])`)
	require.GreaterOrEqual(t, seconds, 5.)
	require.Less(t, seconds, 30.)
	busy := js[float64](b, `parseFloat(document.querySelector('td[data-head=Busy]').textContent)`)
	require.InDelta(t, 500/seconds, busy, 60/seconds, "five of these seconds")
}

// A stream whose other end hangs is closed by nobody: the page says that what it shows is old, and tries again until it is answered.
func TestAStreamThatHangs(t *testing.T) {
	f := newFake([]string{"m"}, []string{"gpu0"})
	b := open(t, ui(t, f.serve(t)))
	b.screen("late")
	b.until(`document.querySelector('.link-state').textContent.includes('live')`, "the stream does not begin")
	f.hung.Store(true)
	b.settled() // no event is on its way any more
	require.NotContains(t, b.text(), "No connection")
	js[bool](b, aMinuteLater)
	b.sees("No connection since", "what is shown is of then: nothing was heard for 45 s")
	b.until(`!document.querySelector('.link-state').textContent.includes('live')`, "it is shown as live")
	f.hung.Store(false)
	js[bool](b, aMinuteLater) // the connection that was made meanwhile hangs too
	b.until(`document.querySelector('.link-state').textContent.includes('live')`, "it is not tried again")
	require.NotContains(t, b.text(), "No connection")
}
