// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// fake is the admin API of a conch that is not there: its state is what the test says, and the console's files are those of bin/conch.
type fake struct {
	// whole are the objects of each topic, changes those that change twice a second.
	whole, changes map[api.Topic][]any
	// answers by path.
	answers map[string]any
	// A stream ends when cut gets something. One that begins with a Last-Event-ID has missed in place of whole, and back gets the id.
	missed map[api.Topic][]any
	cut    chan struct{}
	back   chan string
	// hung: nothing more is sent, and no connection is closed.
	hung atomic.Bool
}

// serve gives the fake's admin address.
func (f *fake) serve(t *testing.T) string {
	t.Helper()
	conch := running(t)
	socket := strings.TrimPrefix(conch.Admin, "unix://")
	files := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "conch"})
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	files.Transport = transport
	mux := http.NewServeMux()
	mux.Handle("/console/", files)
	mux.HandleFunc("/v1/watch", f.watch)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, known := f.answers[r.URL.Path]
		if !known {
			body = []any{}
			if strings.HasPrefix(r.URL.Path, "/v1/plan/explain/") {
				body = api.Explanation{Text: hostile[1]}
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(body)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close(); transport.CloseIdleConnections() })
	return server.URL
}

func (f *fake) watch(w http.ResponseWriter, r *http.Request) {
	if f.hung.Load() {
		<-r.Context().Done()
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	topics, out := r.URL.Query()["topic"], http.NewResponseController(w)
	send := func(from map[api.Topic][]any, all bool) {
		for topic, objects := range from {
			if !slices.Contains(topics, string(topic)) {
				continue
			}
			update := map[string]any{"time": time.Now(), "changed": objects}
			if all {
				update["all"] = true
			}
			text, _ := json.Marshal(update) // of what the test made
			fmt.Fprintf(w, "event: %s\nid: 1\ndata: %s\n\n", topic, text)
		}
		_ = out.Flush()
	}
	if last := r.Header.Get("Last-Event-ID"); last != "" && f.back != nil {
		send(f.missed, false)
		f.back <- last
	} else {
		send(f.whole, true)
	}
	for again := time.NewTicker(500 * time.Millisecond); ; {
		select {
		case <-r.Context().Done():
			again.Stop()
			return
		case <-f.cut:
			again.Stop()
			return
		case <-again.C:
			if !f.hung.Load() {
				send(f.changes, false)
			}
		}
	}
}

// newFake has models and GPUs of these names.
func newFake(models, gpus []string) *fake {
	f := &fake{whole: map[api.Topic][]any{}, changes: map[api.Topic][]any{}, answers: map[string]any{
		"/v1/version": api.Version{Version: "1", Mode: "control", Driver: "process"},
	}}
	f.whole[api.TopicConch] = []any{api.Conch{Version: api.Version{Version: "1", Mode: "control", Driver: "process"}, Health: api.Health{OK: true}}}
	now := time.Now()
	conditions := []api.Condition{{Type: api.ConditionReady, Holds: true, Since: now}, {Type: api.ConditionProgressing, Since: now}, {Type: api.ConditionDegraded, Since: now}}
	for i, name := range models {
		m := api.Model{
			Name: name, Versions: []string{"1"}, State: api.ModelReady, SLOSeconds: .05, Late: "drop", MaxBatchSize: 16, Batchable: true, Discipline: "adaptive", Partitions: []string{"p"},
			Rate: 20, Goodput: 19, MeanBatch: 3, LatencyP50Seconds: .01, LatencyP99Seconds: .04, Conditions: conditions, Revision: "0123456789abcdef", Backend: "onnxruntime",
		}
		if i%50 == 7 {
			m.State, m.StateReason = api.ModelUnplaced, "0/8 partitions: 5 memory, 3 latency"
		}
		window := api.Attainment{Seconds: 5, Requests: 100, InTime: 100, Spent: &api.Spent{Wait: .002, Gather: .001, Execute: .015, Conch: .0003}}
		if i%10 == 3 {
			window.InTime, window.Outcomes = 91, []api.OutcomeCount{{Result: "late", Count: 9}}
		}
		r := api.ModelRequests{Model: name, SLOSeconds: .05, Now: window, Hour: window}
		slack := .01
		waits := api.ModelWaiting{Model: name, Discipline: "adaptive", Requests: 2, Rows: 3, OldestSeconds: .004, CandidateRows: 3, SlackSeconds: &slack}
		f.whole[api.TopicModels] = append(f.whole[api.TopicModels], m)
		f.whole[api.TopicRequests] = append(f.whole[api.TopicRequests], r)
		f.whole[api.TopicWaiting] = append(f.whole[api.TopicWaiting], waits)
		f.changes[api.TopicRequests] = append(f.changes[api.TopicRequests], r)
		f.changes[api.TopicWaiting] = append(f.changes[api.TopicWaiting], waits)
		if i%5 == 0 {
			f.changes[api.TopicModels] = append(f.changes[api.TopicModels], m)
		}
	}
	for back := minutesOfFakes; back > 0; back-- {
		f.whole[api.TopicMinutes] = append(f.whole[api.TopicMinutes], minuteOf(now, back, models))
	}
	var plan []map[string]any
	for i, id := range gpus {
		g := api.GPU{ID: id, Node: fmt.Sprintf("node%d", i/8), Type: "H100-80GB", MemoryBytes: 80 << 30}
		for k := range 3 {
			p := api.Partition{
				ID: fmt.Sprintf("%s.%d", id, k), GPU: id, ThreadPercentage: 30, MemoryLimitBytes: 20 << 30, Up: i%97 != 11 || k > 0, Reason: "its server was killed", BusyShare: float64(i%10) / 10,
				Models: []string{models[(3*i+k)%len(models)], models[(3*i+k+1)%len(models)]}, Conditions: conditions, Started: now,
			}
			if p.Up {
				p.Reason, p.Serving = "", p.Models
			} else {
				p.Serving = []string{}
			}
			g.Partitions = append(g.Partitions, p)
			f.whole[api.TopicPartitions] = append(f.whole[api.TopicPartitions], p)
			plan = append(plan, map[string]any{"id": p.ID, "gpus": []string{id}, "thread_percentage": 30, "instances": []map[string]any{{"model": p.Models[0], "role": "ROLE_CANARY"}, {"model": p.Models[1]}}})
			at := float64(now.UnixMilli()) / 1000
			for n := range 3 {
				start := at - float64(n)*5 - float64(k)
				f.whole[api.TopicExecutions] = append(f.whole[api.TopicExecutions], api.Executed{Partition: p.ID, Model: p.Models[0], Start: start, End: start + .4, Rows: 8, Requests: 8, Deadline: start + .3 + float64(n)/10})
			}
		}
		f.whole[api.TopicGPUs] = append(f.whole[api.TopicGPUs], g)
		if i%10 == 0 {
			f.changes[api.TopicGPUs] = append(f.changes[api.TopicGPUs], g)
		}
	}
	text, _ := json.Marshal(map[string]any{"partitions": plan}) // strings and numbers
	f.whole[api.TopicPlan] = []any{api.Plan{Revision: 3, Policy: "usher", AppliedAt: now.Add(-time.Hour), AppliedBy: "ada", Reason: "start", Plan: text}}
	f.whole[api.TopicEvents] = []any{}
	return f
}

// minutesOfFakes are how many minutes a fake has measured.
const minutesOfFakes = 45

// minuteOf is the minute that began so many minutes before the present one. Of every seventh model nothing was measured in every fifth minute, and every
// tenth was late in some.
func minuteOf(now time.Time, back int, models []string) api.Minute {
	m := api.Minute{Start: now.Add(-time.Duration(back) * time.Minute).Truncate(time.Minute).Unix(), Models: map[string]api.Counted{}}
	for i, name := range models {
		switch {
		case i%7 == 2 && back%5 == 0:
		case i%10 == 3 && back%4 < 2:
			m.Models[name] = api.Counted{1000, 1000 - uint64(20*(back%4+1))} //nolint:gosec // not negative
		default:
			m.Models[name] = api.Counted{1200, 1199}
		}
	}
	return m
}

func numbered(format string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf(format, i))
	}
	return all
}

// Figures and texts do not change their meaning where they are rounded or cut.
func TestFiguresAndTextsAreNotCutWrongly(t *testing.T) {
	b := open(t, ui(t, newFake([]string{"m"}, []string{"gpu0"}).serve(t)))
	b.screen(screens[0])
	b.settled()
	got := js[[]string](b, `import('/console/format.js').then((f) => [...[0.0009996, 0.0123, 0.9996, 59.97, 60, 119, -119, 3600].map(f.seconds), f.short('🐚🐚🐚', 4)])`)
	require.Equal(t, []string{"1.00 ms", "12.3 ms", "1.00 s", "1 min", "1 min", "1 min 59 s", "-1 min 59 s", "1 h 0 min", "🐚…"}, got)
}

// hostile are names that nobody should have, and somebody will.
var hostile = []string{
	strings.Repeat("very-long-", 1024), `<script>document.title = "owned"</script><img src=x onerror="document.title='owned'">`, "\u202egnp.exe \u05e9\u05dc\u05d5\u05dd", `"><b>bold</b>`, "../../etc/passwd", "%00\x01\n\ttab", "🐚🐚", " ",
}

// Names and messages are shown as text, whatever they hold, and break no layout.
func TestHostileNames(t *testing.T) {
	f := newFake(hostile, []string{hostile[0], hostile[1], hostile[2], "gpu3"})
	event := api.Event{ID: 1, Time: time.Now(), Kind: "plan_held", Author: hostile[1], Message: hostile[1] + hostile[0], Reason: hostile[2]}
	f.whole[api.TopicEvents] = []any{event}
	plan := f.whole[api.TopicPlan][0].(api.Plan)
	plan.Held = &api.Held{Kind: event.Kind, Policy: hostile[1], Since: event.Time, Message: event.Message}
	f.whole[api.TopicPlan] = []any{plan}
	f.answers["/v1/repository/revisions"] = []api.RepositoryRevision{{ID: hostile[1], Author: hostile[1], Reason: hostile[0], Models: hostile, Added: hostile, Current: true, Problems: []api.RepositoryProblem{{Model: hostile[1], Refused: true, Text: hostile[0]}}}}
	f.answers["/v1/repository/diff"] = api.RepositoryDiff{From: hostile[1], To: hostile[1], Models: []api.ModelDiff{{Model: hostile[0], Change: "changed", Notes: hostile}, {Model: hostile[1], Text: hostile[0]}}}
	f.answers["/v1/policies"] = []api.Policy{{Name: hostile[1]}, {Name: hostile[0]}}
	f.answers["/v1/plan/history"] = []api.PlanRecord{{Plan: api.Plan{Revision: 3, Policy: hostile[1], AppliedBy: hostile[0], Reason: hostile[1]}, Summary: hostile[0], Diff: hostile[1]}}
	f.answers["/v1/plan/diff"] = api.Diff{Text: hostile[1] + "\n" + hostile[0], Changes: []api.Change{{Action: "start"}}, Verdict: hostile[1], Judgement: hostile[0]}
	b := open(t, ui(t, f.serve(t)))
	for _, name := range screens {
		b.screen(name)
		b.settled()
		for _, size := range [][2]int64{{1440, 900}, {390, 844}} {
			b.look("light", size[0], size[1])
			require.LessOrEqual(t, js[int64](b, `document.documentElement.scrollWidth`), size[0], "%s is wider than its window", name)
			// A canvas follows its window a moment later, and is no wider meanwhile.
			wide := js[int64](b, `(() => { const all = [...document.querySelectorAll('main canvas')], was = all.map((c) => c.style.width); for (const c of all) c.style.width = '2000px'; const w = document.documentElement.scrollWidth; all.forEach((c, i) => { c.style.width = was[i] }); return w })()`)
			require.LessOrEqual(t, wide, size[0], "%s is wider than its window until its canvas is drawn again", name)
		}
		b.accessible(name + " with hostile names")
		b.picture("hostile-" + name)
		b.look("light", 1440, 900)
		for _, selector := range []string{"tbody button.link", ".chip:not(.plain)", ".part-head", ".policies button", ".tried .link", ".history .link"} {
			if js[bool](b, `(() => { const e = [...document.querySelectorAll('`+selector+`')].find((e) => e.textContent.includes('script')) ?? document.querySelector('`+selector+`'); e?.click(); return !!e })()`) {
				b.settled()
				// Else it might end the next drawer.
				b.until(`(document.querySelector('dialog[open]')?.close(), !document.querySelector('dialog'))`, "the drawer of %s does not close", selector)
			}
		}
		require.NotContains(t, js[string](b, `document.title`), "owned")
		require.False(t, js[bool](b, `!!document.querySelector('main script, main img, main b b')`), "a name became an element on %s", name)
	}
}

// drawn says whether the chart of the last hour has a line in its middle, where the minutes of half an hour ago are: its filling goes down to the axis, and is
// no grey, as the grid is.
const drawn = `(() => { const c = document.querySelector('.plot canvas'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
	for (let y = 0; y < c.height; y++) for (let x = c.width * 0.4; x < c.width * 0.9; x++) { const i = 4 * (y * c.width + Math.floor(x)); if (d[i + 3] > 200 && d[i + 2] - d[i] > 90) return true } return false })()`

// The last hour is a chart, with gaps where nothing was measured; a connection that breaks brings only the minutes since.
func TestTheLastHour(t *testing.T) {
	models := numbered("model-%d", 5)
	f := newFake(append(slices.Clone(models), "constructor"), []string{"gpu0"})
	for _, m := range f.whole[api.TopicMinutes] {
		delete(m.(api.Minute).Models, "constructor")
	}
	// A minute ago as the fake began: the test may run into the next minute, and this one is not seen twice.
	f.missed = map[api.Topic][]any{api.TopicMinutes: {minuteOf(time.Now(), 0, models[:3])}}
	f.cut, f.back = make(chan struct{}), make(chan string, 10)
	b := open(t, ui(t, f.serve(t)))
	b.screen("late")
	b.sees("In time over the last hour, all requests: 45 minutes measured, none below 99%")
	label := func(model string) string {
		return `[...document.querySelectorAll('tbody tr')].find((r) => r.querySelector('th').textContent === '` + model + `').querySelector('svg.hour')?.getAttribute('aria-label') ?? ''`
	}
	require.Equal(t, "last hour: 45 minutes measured, none below 99%", js[string](b, label("model-0")))
	require.Equal(t, "last hour: 36 minutes measured, none below 99%", js[string](b, label("model-2")), "of nine minutes nothing is known")
	require.Equal(t, "last hour: 45 minutes measured, 23 below 99%, the worst 96.0%", js[string](b, label("model-3")))
	require.Empty(t, js[string](b, label("constructor")), "nothing was measured")
	require.Equal(t, 36, js[int](b, `document.querySelectorAll('tbody tr svg.hour')[0] && [...document.querySelectorAll('tbody tr')].find((r) => r.querySelector('th').textContent === 'model-2').querySelector('svg.hour .kept').getAttribute('d').match(/M/g).length`))
	for _, look := range []struct {
		scheme string
		width  int64
	}{{"light", 1440}, {"dark", 1440}, {"light", 390}} {
		b.look(look.scheme, look.width, 900)
		require.True(t, js[bool](b, drawn), "%s, %d: the chart is made anew for another theme, with what is known", look.scheme, look.width)
		b.picture(fmt.Sprintf("hour-%s-%d", look.scheme, look.width))
		b.accessible("the last hour")
	}
	b.look("light", 1440, 900)
	b.click("tbody button.link", "model-3")
	b.sees("In time over the last hour: 45 minutes measured, 23 below 99%")
	b.settled()
	b.picture("hour-of-a-model")
	b.accessible("the last hour of a model")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.until(`!document.querySelector('dialog')`, "Escape closes nothing")
	b.click("tbody button.link", "constructor")
	b.sees("In time over the last hour: unknown, no whole minute was measured yet")
	b.do(chromedp.KeyEvent(kb.Escape))

	f.cut <- struct{}{}
	require.NotEmpty(t, <-f.back, "the browser says what it has")
	b.sees("all requests: 46 minutes measured")
	require.Equal(t, "last hour: 45 minutes measured, 23 below 99%, the worst 96.0%", js[string](b, label("model-3")), "it was not measured meanwhile")
}

const (
	// longest is the longest task of the main thread that is allowed while nobody touches the page, in ms.
	longest = 50
	// looks are how often it is looked at, at the most. The page does the same work twice a second, and what else runs on the machine stretches it now
	// and then: the quietest look counts.
	looks = 12
)

// A thousand models and a thousand GPUs, all under load: no task of the main thread is long.
func TestAThousandModelsAndGPUs(t *testing.T) {
	f := newFake(numbered("model-%04d", 1000), numbered("gpu-%04d", 1000))
	b := open(t, ui(t, f.serve(t)))
	for _, name := range []string{"late", "gpus", "waiting", "timeline", "models"} {
		b.screen(name)
		b.settled()
		b.picture("thousand-" + name)
		js[bool](b, `new Promise((r) => setTimeout(() => r(true), 700))`)
		worst := 1e9
		for range looks {
			worst = min(worst, b.longestTask())
			if worst <= longest {
				break
			}
		}
		t.Logf("%s: the longest task is one of %.0f ms", name, worst)
		require.LessOrEqual(t, worst, float64(longest), "%s at rest", name)
	}
	b.screen("gpus")
	b.sees("1,000 GPUs", "1 / 16")
	require.Equal(t, 64, js[int](b, `document.querySelectorAll('.gpu').length`))
	b.click(".pages button", "›")
	b.sees("2 / 16")
	b.accessible("a thousand GPUs")
}

// Where more is executed than is kept, the timeline says of how many seconds its figures are.
func TestMoreExecutionsThanAreKept(t *testing.T) {
	f := newFake(numbered("model-%d", 2), []string{"gpu0"})
	var all []any
	const every = .001
	now := float64(time.Now().UnixMilli()) / 1000
	for n := range 10_000 {
		end := now - every*float64(10_000-n)
		all = append(all, api.Executed{Partition: "gpu0.0", Model: "model-0", Start: end - every/2, End: end, Rows: 1, Requests: 1})
	}
	f.whole[api.TopicExecutions] = all
	b := open(t, ui(t, f.serve(t)))
	b.screen("timeline")
	b.sees("All 8,192 executions of ")
	seconds := js[float64](b, `Number(document.body.innerText.match(/All 8,192 executions of (\d+) seconds ended in time/)[1])`)
	require.GreaterOrEqual(t, seconds, 8., "8,192 executions of a millisecond each")
	require.Less(t, seconds, 30., "and what was before them is not known")
}

// longestTask is the longest of the main thread within 1.2 s, in ms; 0: none was above 50 ms.
func (b *browser) longestTask() (worst float64) {
	for _, task := range js[[]float64](b, `new Promise((done) => { const all = []; const o = new PerformanceObserver((l) => { for (const e of l.getEntries()) all.push(e.duration) }); o.observe({entryTypes: ['longtask']}); setTimeout(() => { o.disconnect(); done(all) }, 1200) })`) {
		worst = max(worst, task)
	}
	return worst
}
