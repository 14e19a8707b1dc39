// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// axe is axe-core, which finds what keeps people with a screen reader, or with few colours, from using a page.
//
//go:embed testdata/axe.min.js
var axe string

// screens by their address, in the page's order.
var screens = []string{"late", "gpus", "waiting", "plans", "timeline", "models"}

// browser is a tab of chromium. Everything that goes wrong in it fails the test at the end.
type browser struct {
	t   *testing.T
	ctx context.Context
	// origin is the only one that it may ask anything of.
	origin string

	mu     sync.Mutex
	faults []string
	// allowed are texts of faults that are expected.
	allowed []string
}

// chromium is the path of the browser. Tests that need one are skipped without.
func chromium(t *testing.T) string {
	t.Helper()
	if p := os.Getenv("CONCH_CHROMIUM"); p != "" {
		return p
	}
	for _, name := range []string{"chromium", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			return p
		}
	}
	if os.Getenv("CONCH_BROWSER") == "required" {
		require.FailNow(t, "there is no chromium: run `make browser`, which installs it")
	}
	t.Skip("there is no chromium: run `make browser`, which installs it, or set CONCH_CHROMIUM")
	return ""
}

// open starts a browser of its own and opens a link.
func open(t *testing.T, link string) *browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium(t)), chromedp.WindowSize(1440, 900), chromedp.Flag("lang", "en"))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	all, endAll := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, end := chromedp.NewContext(all)
	t.Cleanup(func() { end(); endAll() })
	u, err := url.Parse(link)
	require.NoError(t, err)
	b := &browser{t: t, origin: u.Scheme + "://" + u.Host}
	require.NoError(t, chromedp.Listen(ctx, b.listen))
	bounded, cancel := context.WithTimeout(ctx, 5*time.Minute) // of a browser that hangs
	t.Cleanup(cancel)
	b.ctx = bounded
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		require.Empty(t, b.faults, "what went wrong in the browser")
	})
	command(b, log.Enable, cdp.Empty{})
	command(b, runtime.Enable, cdp.Empty{})
	command(b, network.Enable, network.EnableParams{})
	b.do(chromedp.Navigate(link))
	return b
}

// command of the DevTools protocol.
func command[P, R any](b *browser, c cdp.Command[P, R], params P) R {
	b.t.Helper()
	out, err := chromedp.Call(b.ctx, c, params)
	require.NoError(b.t, err)
	return out
}

func (b *browser) listen(event any) {
	fault := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		fault = e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			fault += " " + e.ExceptionDetails.Exception.Description
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			fault = fmt.Sprintf("%s %s", e.Entry.Text, e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, b.origin+"/") && !strings.HasPrefix(e.Request.URL, "data:") && !strings.HasPrefix(e.Request.URL, "blob:") {
			fault = "it asked another host: " + e.Request.URL
		}
	}
	if fault == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.allowed {
		if strings.Contains(fault, a) {
			return
		}
	}
	b.faults = append(b.faults, fault)
}

// allow expects faults with this text.
func (b *browser) allow(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.allowed = append(b.allowed, text)
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, steps...))
}

// js evaluates an expression, awaiting it if it is a promise.
func js[T any](b *browser, expression string) T {
	b.t.Helper()
	out, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(b.t, err)
	return out
}

// text of what is on the page.
func (b *browser) text() string {
	b.t.Helper()
	return js[string](b, `document.body?.innerText ?? ''`)
}

// until waits for an expression to be true. A page that is just being replaced evaluates nothing.
func (b *browser) until(expression, otherwise string, arguments ...any) {
	b.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if done, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](expression)); err == nil && done {
			return
		}
		if time.Now().After(end) {
			text := b.text()
			require.FailNow(b.t, "waited in vain", fmt.Sprintf(otherwise, arguments...)+"; there is:\n"+text[:min(len(text), 1500)])
		}
	}
}

// sees waits until the page has these texts.
func (b *browser) sees(texts ...string) {
	b.t.Helper()
	for _, text := range texts {
		quoted, err := json.Marshal(text)
		require.NoError(b.t, err)
		b.until(`!!document.body?.innerText.includes(`+string(quoted)+`)`, "%q is not on the page", text)
	}
}

// screen goes to a screen and waits until its state is there.
func (b *browser) screen(name string) {
	b.t.Helper()
	b.until(`location.pathname === '/console/' && (location.hash = '`+name+`') && document.querySelector('nav [aria-current]')?.getAttribute('href') === '#`+name+`' && !!document.querySelector('.verdict h1') && !document.querySelector('.verdict.busy')`,
		"the screen %s has no verdict", name)
}

// click the first element of a selector whose text holds a text.
func (b *browser) click(selector, text string) {
	b.t.Helper()
	find, err := json.Marshal([]string{selector, text})
	require.NoError(b.t, err)
	expression := `(([s, t]) => { const e = [...document.querySelectorAll(s)].find((e) => e.textContent.includes(t) && !e.disabled); e?.click(); return !!e })(` + string(find) + `)`
	b.until(expression, "there is no %s with %q", selector, text)
}

// look sets the colour scheme and the size.
func (b *browser) look(scheme string, width, height int64) {
	b.t.Helper()
	command(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	command(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 600})
	js[bool](b, `new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))`)
}

// picture writes a PNG of what is seen if CONCH_PICTURES names a directory.
func (b *browser) picture(name string) {
	b.t.Helper()
	dir := os.Getenv("CONCH_PICTURES")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	require.NoError(b.t, err)
	require.NoError(b.t, os.MkdirAll(dir, 0o755))
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}

// accessible requires that axe finds nothing.
func (b *browser) accessible(where string) {
	b.t.Helper()
	if !js[bool](b, `!!window.axe`) {
		b.do(chromedp.Evaluate[chromedp.Void](axe))
	}
	found := js[string](b, `axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations.map((v) => v.id + ': ' + v.help + '\n' + v.nodes.slice(0, 3).map((n) => '    ' + n.html.slice(0, 300) + ' ' + n.failureSummary).join('\n')).join('\n'))`)
	assert.Empty(b.t, found, "axe-core on %s", where)
}

// settled waits until nothing is being asked for, and what was answered is painted.
func (b *browser) settled() {
	b.t.Helper()
	b.until(`!document.body.innerText.includes('Asking conch')`, "something is not answered")
	js[bool](b, `new Promise((r) => setTimeout(() => requestAnimationFrame(() => r(true)), 300))`)
}
