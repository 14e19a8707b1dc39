// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/static"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
)

// withdrawn is the model that the policy withdrawing takes away.
const withdrawn = "VGG16"

// withdrawing plans as static does, but has no place for a model once clients ask for it: a plan that conch does not apply by itself.
type withdrawing struct{}

func (withdrawing) Describe(context.Context) (*policy.Description, error) {
	return &policy.Description{Name: "withdrawing", Version: "1", Summary: "Takes a model away once clients ask for it.", Disciplines: []string{"adaptive"}}, nil
}

func (withdrawing) Plan(ctx context.Context, s *policy.Snapshot, h policy.Host) (*policy.Plan, error) {
	asked := proto.CloneOf(s)
	asked.Parameters = nil
	for _, m := range s.GetModels() {
		if m.GetName() == withdrawn && m.GetRate() > 0 {
			asked.Parameters = map[string]string{"placement": withdrawn + " = nowhere"}
		}
	}
	plan, err := static.New().Plan(ctx, asked, h)
	if err != nil {
		return nil, err
	}
	plan.Policy, plan.PolicyVersion = "withdrawing", "1"
	return plan, nil
}

// A plan that conch holds back is said, with why; what it would change is shown, and applied where the door takes orders.
func TestAPlanIsHeldBack(t *testing.T) {
	chromium(t)
	self, err := os.Executable()
	require.NoError(t, err)
	models, err := rig.Zoo(zoo.GTX1080Ti, 5, 16, "ResNet50", withdrawn)
	require.NoError(t, err)
	conch, err := rig.StartConch(t.Context(), rig.ConchOptions{Bin: bin(), Models: models, GPUs: 2, GPUType: zoo.GTX1080Ti, Settings: map[string]any{
		"policy": map[string]any{"name": "withdrawing", "executable": self}, "interval": "1s",
	}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conch.Close() })
	calls, err := loadgen.NewGRPC(conch.Endpoints(), models.Load(), loadgen.Emulated(16))
	require.NoError(t, err)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = loadgen.Run(context.Background(), loadgen.Load{Models: models.Load(), Rate: 20, Measure: time.Hour, Until: done, Seed: 1, Patience: time.Second}, calls, clock.System())
	}()
	t.Cleanup(func() { close(done); <-ended; _ = calls.Close() })

	b := open(t, ui(t, conch.Admin))
	b.screen("plans")
	b.sees("another is held back", withdrawn+" would no longer be served, and clients use it", "tritonctl plan apply")
	b.click(".verdict button", "What it would change")
	b.sees("What withdrawing would do", "waits for your word", "\n    - "+withdrawn+"\n")
	require.False(t, js[bool](b, `!!document.querySelector('.orders')`), "a door that only looks offers no orders")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.until(`!document.querySelector('dialog')`, "Escape closes nothing")
	for _, look := range []struct {
		name, scheme string
		width        int64
	}{{"light", "light", 1440}, {"dark", "dark", 1440}, {"phone", "light", 390}} {
		b.look(look.scheme, look.width, 900)
		b.picture("held-" + look.name)
		b.accessible("a plan held back, " + look.name)
		require.LessOrEqual(t, js[int64](b, `document.documentElement.scrollWidth`), look.width, "wider than its window")
	}

	b = open(t, ui(t, conch.Admin, "--allow-changes"))
	b.screen("plans")
	b.click(".verdict button", "What it would change")
	b.sees("What withdrawing would do")
	b.picture("held-proposal")
	b.accessible("a plan held back, its changes")
	b.click(".orders button", "Apply exactly this")
	b.click(".orders button.do", "Apply exactly this")
	b.until(`!document.body.innerText.includes('another is held back')`, "it is not applied")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.screen("late")
	b.sees(withdrawn + " (unplaced")
	b.picture("held-applied")
}

// What is undone stays undone: the policy, which is asked every second, would put it back.
func TestAnUndoLasts(t *testing.T) {
	chromium(t)
	models, err := rig.Zoo(zoo.GTX1080Ti, 5, 16, "ResNet50")
	require.NoError(t, err)
	conch, err := rig.StartConch(t.Context(), rig.ConchOptions{Bin: bin(), Models: models, GPUs: 2, GPUType: zoo.GTX1080Ti, Settings: map[string]any{"interval": "1s"}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conch.Close() })
	a, err := client.New(conch.Admin)
	require.NoError(t, err)
	defer a.Close()
	before, err := a.Plan(t.Context())
	require.NoError(t, err)
	_, err = a.UsePolicy(t.Context(), api.UsePolicyRequest{Name: "static", Parameters: map[string]string{"placement": "ResNet50 = gpu1"}})
	require.NoError(t, err)
	b := open(t, ui(t, conch.Admin, "--allow-changes"))
	b.screen("plans")
	b.sees(fmt.Sprintf("Plan %d of policy", before.Revision+1))
	b.click(".orders button", "Undo")
	b.sees("keep it until it is unpinned")
	b.click(".orders button.do", "Undo")
	b.sees(fmt.Sprintf("Plan %d is pinned by", before.Revision+2))
	require.False(t, js[bool](b, `[...document.querySelectorAll('.orders button')].some((e) => e.textContent === 'Undo')`), "no plan takes the place of one that is pinned")
}
