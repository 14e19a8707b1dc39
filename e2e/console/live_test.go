// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin/client"
)

// Every screen shows a live conch, in light and dark, on a desk and on a phone, and nothing on it keeps anybody out.
func TestScreensOfALiveConch(t *testing.T) {
	conch := running(t)
	b := open(t, ui(t, conch.Admin))
	b.sees("Late", "GPUs", "read-only", "live")
	shows := map[string][]string{
		"late": {"ResNet50", "In time now", "In time over the last hour, all requests", "unloadable", "failed"}, "gpus": {"gpu0", "gpu3", "in use: unknown, the GPU is emulated", "unloadable", "busy"}, "waiting": {"Requests", "Oldest"},
		"plans": {"In force", "static", "usher", "Plan 1"}, "timeline": {"gpu0", "Executions", "executions"}, "models": {"ResNet50", "python", "Revisions", "r1"},
	}
	for _, name := range screens {
		b.look("light", 1440, 900)
		b.screen(name)
		b.settled()
		b.sees(shows[name]...)
		if name == "late" || name == "gpus" {
			b.sees("try specifying runtime on the model configuration") // why the model does not load, which the server says last
		}
		b.picture(name + "-light")
		b.accessible(name + ", light")
		b.look("dark", 1440, 900)
		b.picture(name + "-dark")
		b.accessible(name + ", dark")
		b.look("light", 390, 844)
		require.LessOrEqual(t, js[int](b, `document.documentElement.scrollWidth`), 390, "%s is wider than a phone", name)
		b.picture(name + "-phone")
		b.accessible(name + ", phone")
	}
}

// What is clicked is asked for and shown; the keyboard does the same.
func TestClicksAndKeys(t *testing.T) {
	conch := running(t)
	b := open(t, ui(t, conch.Admin))
	b.screen("late")
	b.click("tbody button.link", "ResNet50")
	b.sees("Slowest of ResNet50", "Why it is where it is")
	b.settled()
	b.picture("slowest")
	b.accessible("slowest")
	b.until(`document.querySelectorAll('.slowest li').length > 0`, "there is no slow request")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.until(`!document.querySelector('dialog')`, "Escape closes nothing")

	b.do(chromedp.KeyEvent("2"))
	b.until(`location.hash === '#gpus'`, "the key 2 is not the second screen")
	b.click(".part-head", "%")
	b.sees("Conditions", "restarts that nobody ordered")
	require.False(t, js[bool](b, `!!document.querySelector('.orders')`), "a door that only looks offers no orders")
	b.picture("partition")
	b.accessible("a partition")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.until(`!document.querySelector('dialog')`, "Escape closes nothing")

	b.screen("plans")
	b.allow("/v1/plan/diff") // some policies cannot plan for this snapshot, which conch answers as an error
	b.click("section button", "Ask all")
	b.until(`document.querySelectorAll('.tried').length + document.querySelectorAll('.policies .problem').length >= 9`, "not every policy was asked")
	b.picture("plans-asked")
	b.accessible("plans, asked")

	b.screen("timeline")
	b.until(`document.querySelector('main').innerText.includes('executions')`, "nothing was executed")
	b.do(chromedp.Focus("canvas"), chromedp.KeyEvent(" "))
	b.sees("stands at")
	b.do(chromedp.KeyEvent(kb.ArrowLeft))
	b.until(`!!document.querySelector('.tip')`, "an arrow key steps to no execution")
	b.picture("timeline-hover")
	b.accessible("timeline, paused")

	b.screen("models")
	b.click("tbody button.link", "VGG16")
	b.sees("How long a batch takes", "observed, ") // with how many executions
	require.Contains(t, js[string](b, `document.querySelector('dialog .u-legend').innerText`), "observed", "the legend names every line")
	b.settled()
	b.picture("model")
	b.accessible("a model")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.click(".history button.link", "r1")
	b.sees("Revision", "added")
}

// Orders are given where the door takes them, are asked about once more, and have an author.
func TestOrders(t *testing.T) {
	conch := running(t)
	b := open(t, ui(t, conch.Admin, "--allow-changes"))
	b.screen("plans")
	require.NotContains(t, b.text(), "read-only")
	b.click(".orders button", "Pin")
	b.sees("Keep this plan until it is unpinned?")
	b.click(".orders button.do", "Pin")
	b.sees("is pinned by")
	b.picture("pinned")
	a, err := client.New(conch.Admin)
	require.NoError(t, err)
	defer a.Close()
	pinned, err := a.Events(t.Context(), 0, "plan_pinned")
	require.NoError(t, err)
	require.NotEmpty(t, pinned)
	require.NotEmpty(t, pinned[len(pinned)-1].Author)
	b.click(".orders button", "Unpin")
	b.click(".orders button.do", "Unpin")
	b.until(`!document.body.innerText.includes('is pinned by')`, "it is still pinned")
}

// What happens to a server that is killed is seen without a reload.
func TestAServerIsKilled(t *testing.T) {
	conch := running(t)
	b := open(t, ui(t, conch.Admin))
	b.screen("gpus")
	b.until(`!document.querySelector('.partition.bad')`, "a partition is down before anything happened")
	a, err := client.New(conch.Admin)
	require.NoError(t, err)
	defer a.Close()
	all, err := a.Partitions(t.Context())
	require.NoError(t, err)
	require.NoError(t, conch.Kill(all[0].ID))
	b.screen("timeline")
	b.sees("partition down", "partition up")
	b.picture("killed")
	b.screen("gpus")
	b.until(`!document.querySelector('.partition.bad')`, "it does not come back")
	b.click(".part-head", "%")
	b.sees("1 restart that nobody ordered")
}

// The page says that nothing answers, and that a link was used before.
func TestConnectionIsLost(t *testing.T) {
	conch := running(t)
	link, stop := startUI(t, conch.Admin)
	b := open(t, link)
	b.screen("late")
	b.allow("Failed to load resource")
	b.allow("net::ERR")
	b.do(chromedp.Navigate(link))
	b.sees("Not let in", "the link was used before", "tritonctl ui prints a new link")
	b.picture("used-link")
	b.do(chromedp.Navigate(b.origin + "/"))
	b.screen("late")
	stop()
	b.sees("no connection")
	b.picture("lost")
}
