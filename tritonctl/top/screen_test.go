// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package top_test

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/exp/teatest/v2"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/tritonctl/output"
	"github.com/conch-serving/conch/tritonctl/top"
)

// The flag -update is the golden package's of teatest.
func updating() bool { return flag.Lookup("update").Value.String() == "true" }

func at(second int) time.Time { return time.Date(2026, 11, 23, 12, 0, second, 0, time.Local) }

// world is two GPUs, one of them halved, with models in every state.
func world() *top.State {
	model := func(name string, state api.ModelState, rate, bad, p99 float64, queued int) api.Model {
		return api.Model{
			Name: name, State: state, Rate: rate, BadRate: bad, LatencyP50Seconds: p99 / 2, LatencyP99Seconds: p99, SLOSeconds: .025, Queued: queued, Late: "drop",
			MaxBatchSize: 16, MeanBatch: 6.5, Discipline: "adaptive", Versions: []string{"1"}, Partitions: []string{"gpu0"}, Goodput: rate * (1 - bad), Burstiness: 1,
			Conditions: []api.Condition{{Type: api.ConditionReady, Holds: state == api.ModelReady, Since: at(1)}},
		}
	}
	s := &top.State{
		Time: at(30), Version: api.Version{Version: "0.1", Mode: "control", Driver: "embedded"}, Health: api.Health{OK: true},
		Models: []api.Model{
			model("resnet50", api.ModelReady, 812.4, .002, .0213, 3), model("bert", api.ModelReady, 95, .034, .0312, 17), model("idle", api.ModelReady, 0, 0, 0, 0),
			model("vgg", api.ModelUnplaced, 0, 0, 0, 0), model("broken", api.ModelFailed, 0, 0, 0, 0), model("模型\x1b[31m-with-a-name-that-is-much-too-long", api.ModelUnloaded, 0, 0, 0, 0),
		},
		GPUs: []api.GPU{
			{ID: "gpu0", Type: "A100", Emulated: true, Partitions: []api.Partition{
				{ID: "gpu0", GPU: "gpu0", ThreadPercentage: 100, Up: true, BusyShare: .83, Models: []string{"resnet50", "bert"}, Serving: []string{"resnet50", "bert"}, GRPC: "127.0.0.1:9001"},
			}},
			{ID: "gpu1", Type: "A100", Emulated: true, Cordon: &api.Cordon{Author: "ada", Since: at(2)}, Partitions: []api.Partition{
				{ID: "gpu1.0", GPU: "gpu1", ThreadPercentage: 50, Up: true, BusyShare: .4, Serving: []string{"resnet50"}},
				{ID: "gpu1.1", GPU: "gpu1", ThreadPercentage: 25, Reason: "exit status 1", Models: []string{"bert"}},
			}},
		},
		Events: []api.Event{
			{ID: 1, Time: at(1), Kind: "started", Author: "conch", Message: "conch serves"},
			{ID: 2, Time: at(2), Kind: "plan_applied", Author: "ada", Reason: "more load", Message: "plan 7 serves", Seconds: 1.25, Fields: map[string]string{"diff": "+ gpu1.0: 50% of gpu1\n  + resnet50"}},
			{ID: 3, Time: at(20), Kind: "partition_down", Author: "conch", Message: "gpu1.1: exit status 1"},
		},
	}
	slack, passed := .0031, -.0042
	s.Waiting = []api.ModelWaiting{
		{Model: "bert", Requests: 17, Rows: 20, OldestSeconds: .0271, CandidateRows: 8, SlackSeconds: &passed},
		{Model: "resnet50", Requests: 3, Rows: 3, OldestSeconds: .0042, CandidateRows: 1, SlackSeconds: &slack},
	}
	s.Requests = []api.ModelRequests{{
		Model: "resnet50", SLOSeconds: .025,
		Now: api.Attainment{Seconds: 30, Requests: 24372, InTime: 24323, Outcomes: []api.OutcomeCount{{Result: "dropped", Reason: "deadline", Count: 31}, {Result: "late", Count: 18}},
			Spent: &api.Spent{Wait: .0031, Gather: .0012, Execute: .0098, Conch: .00002}},
		Hour: api.Attainment{Seconds: 3600, Requests: 2_924_640, InTime: 2_924_639},
	}}
	// Of bert nothing was measured for half an hour, and nothing of the others; conch has been running for 50 minutes.
	for back := 50; back > 0; back-- {
		m := api.Minute{Start: at(0).Unix() - int64(back)*60, Models: map[string]api.Counted{"resnet50": {1000, 998}}}
		if back <= 30 {
			m.Models["bert"] = api.Counted{200, 200 - uint64(back)} //nolint:gosec // not negative
		}
		s.Minutes = append(s.Minutes, m)
	}
	s.Models[3].StateReason, s.Models[4].StateReason = "0/3 partitions: 3 memory", "libtorch.so: cannot open shared object file"
	return s
}

// shown runs a screen under teatest, sends what a person and conch do, and gives what is on it at the end, without styles.
func shown(t *testing.T, width, height int, messages ...any) string {
	t.Helper()
	screen := top.NewScreen(func() time.Time { return at(42) })
	tm := teatest.NewTestModel(t, screen, teatest.WithInitialTermSize(width, height))
	for _, m := range messages {
		if keys, isText := m.(string); isText {
			tm.Type(keys)
		} else {
			tm.Send(m)
		}
	}
	tm.Send(tea.QuitMsg{})
	final := tm.FinalModel(t, teatest.WithFinalTimeout(10*time.Second)).(*top.Screen)
	text := ansi.Strip(final.View().Content)
	for _, line := range strings.Split(text, "\n") {
		require.LessOrEqual(t, lipgloss.Width(line), width, "%q", line)
	}
	require.Equal(t, height, strings.Count(text, "\n")+1, "the screen is filled and no more")
	require.NotContains(t, text, "\x1b")
	return text
}

func golden(t *testing.T, name, text string) {
	t.Helper()
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	text = strings.Join(lines, "\n") + "\n"
	path := filepath.Join("testdata", name+".golden.txt")
	if updating() {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), text)
}

func key(code rune) tea.KeyPressMsg { return tea.KeyPressMsg{Code: code} }

func TestScreens(t *testing.T) {
	later := world()
	later.Models[0].Rate, later.Models[1].Queued, later.Waiting[0].Requests = 400, 25, 25
	sick := world()
	sick.Health = api.Health{Checks: []api.Check{{Name: "a", OK: true}, {Name: "plan", Reason: "no plan serves yet"}}}
	for _, c := range []struct {
		name          string
		width, height int
		messages      []any
	}{
		{"connecting", 80, 8, nil},
		{"nobody", 80, 8, []any{top.Lost{Err: errors.New("unix:///run/conch/admin.sock: no such file")}}},
		{"models", 80, 16, []any{top.Changed{State: world()}}},
		{"models-sorted", 80, 12, []any{top.Changed{State: world()}, "ss"}},
		{"models-hour", 100, 12, []any{top.Changed{State: world()}}},
		{"models-narrow", 50, 12, []any{top.Changed{State: world()}}},
		{"models-wide", 120, 12, []any{top.Changed{State: world()}}},
		{"models-few-lines", 80, 8, []any{top.Changed{State: world()}, "G"}},
		{"filter", 80, 12, []any{top.Changed{State: world()}, "/bert", key(tea.KeyEnter)}},
		{"filter-typing", 80, 12, []any{top.Changed{State: world()}, "/zzx", key(tea.KeyBackspace)}},
		{"gpus", 80, 14, []any{top.Changed{State: world()}, "2"}},
		{"gpu", 80, 20, []any{top.Changed{State: world()}, "2", key(tea.KeyEnter)}},
		{"waiting", 80, 12, []any{top.Changed{State: world()}, "3", top.Changed{State: later}}},
		{"events", 80, 12, []any{top.Changed{State: world()}, "4"}},
		{"model", 80, 20, []any{top.Changed{State: world()}, "jjj", key(tea.KeyEnter)}},
		{"model-measured-in-part", 80, 20, []any{top.Changed{State: world()}, "jj", key(tea.KeyEnter)}},
		{"model-unmeasured", 80, 20, []any{top.Changed{State: world()}, "jjjj", key(tea.KeyEnter)}},
		{"partition", 80, 16, []any{top.Changed{State: world()}, "2Gk", key(tea.KeyEnter)}},
		{"event", 80, 14, []any{top.Changed{State: world()}, "4j", key(tea.KeyEnter)}},
		{"gone", 80, 10, []any{top.Changed{State: world()}, key(tea.KeyEnter), top.Changed{State: &top.State{}}}},
		{"lost", 80, 12, []any{top.Changed{State: world()}, top.Lost{Err: errors.New("connection reset by peer")}}},
		{"back", 80, 12, []any{top.Changed{State: world()}, top.Lost{Err: errors.New("connection reset by peer")}, top.Changed{State: later}}},
		{"not-ready", 80, 12, []any{top.Changed{State: sick}}},
		{"help", 80, 24, []any{top.Changed{State: world()}, "?"}},
		{"resized", 60, 10, []any{top.Changed{State: world()}, tea.WindowSizeMsg{Width: 60, Height: 10}}},
	} {
		t.Run(c.name, func(t *testing.T) { golden(t, c.name, shown(t, c.width, c.height, c.messages...)) })
	}
}

// The selection stays on a model while others come, go and change their order.
func TestTheSelectionFollowsItsRow(t *testing.T) {
	changed := world()
	changed.Models[1].Rate, changed.Models = 5000, append(changed.Models, api.Model{Name: "another", Rate: 9000})
	text := shown(t, 80, 16, top.Changed{State: world()}, "jj", top.Changed{State: changed}, key(tea.KeyEnter))
	require.Contains(t, text, "model bert")
}

// Any key at any time leaves a screen that fits.
func TestNoKeyBreaksAScreen(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {20, 6}, {1, 1}, {300, 100}} {
		s := top.NewScreen(func() time.Time { return at(42) })
		s.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		for _, state := range []*top.State{world(), {}, world()} {
			s.Update(top.Changed{State: state})
			for _, k := range []string{"2", "j", "s", "s", "r", "<", "/", "x", "enter", "esc", "4", "enter", "j", "esc", "3", "G", "g", "?", "x", "1", "enter"} {
				msg := tea.KeyPressMsg{Text: k, Code: []rune(k)[0]}
				switch k {
				case "enter":
					msg = key(tea.KeyEnter)
				case "esc":
					msg = key(tea.KeyEscape)
				}
				s.Update(msg)
				for _, line := range strings.Split(s.View().Content, "\n") {
					if size[0] >= 20 {
						require.True(t, lipgloss.Width(line) <= size[0] || size[0] < 40, "%v after %s: %q", size, k, line)
					}
				}
			}
			s.Update(key(tea.KeyEscape))
		}
	}
}

// Figures of the last seconds are drawn; a state that is lost is not sampled.
func TestSparklines(t *testing.T) {
	s := top.NewScreen(func() time.Time { return at(42) })
	for _, rate := range []float64{100, 400, 800} {
		state := world()
		state.Models = state.Models[:1]
		state.Models[0].Rate = rate
		s.Update(top.Changed{State: state})
		s.Update(top.Tick{})
	}
	require.Contains(t, ansi.Strip(s.View().Content), " ▂▂▅█ ")
	s.Update(top.Lost{Err: errors.New("gone")})
	s.Update(top.Tick{})
	require.Contains(t, ansi.Strip(s.View().Content), " ▂▂▅█ ")
}

// Light and dark backgrounds have their own colours; without colours nothing is lost, since every meaning is a word too.
func TestColours(t *testing.T) {
	draw := func(dark bool, profile colorprofile.Profile) string {
		s := top.NewScreen(func() time.Time { return at(42) })
		background := lipgloss.Color("#ffffff")
		if dark {
			background = lipgloss.Color("#000000")
		}
		s.Update(tea.BackgroundColorMsg{Color: background})
		s.Update(top.Changed{State: world()})
		var out bytes.Buffer
		w := colorprofile.Writer{Forward: &out, Profile: profile}
		_, err := w.WriteString(s.View().Content)
		require.NoError(t, err)
		return out.String()
	}
	light, dark, none := draw(false, colorprofile.TrueColor), draw(true, colorprofile.TrueColor), draw(true, colorprofile.ASCII)
	require.NotEqual(t, light, dark)
	require.Contains(t, light, "38;2;")
	require.NotContains(t, none, "38;")
	require.Equal(t, ansi.Strip(light), ansi.Strip(none))
	require.Contains(t, none, "\x1b[7m", "what is selected is reversed")
}

func TestOnceIsForScripts(t *testing.T) {
	s := world()
	var out bytes.Buffer
	require.NoError(t, output.Print(&out, "table", s, func(table *output.Table) { top.Draw(table, s) }))
	golden(t, "once", strings.TrimRight(out.String(), "\n"))
}
