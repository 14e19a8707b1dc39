// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package advise is `tritonctl advise`.
package advise

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/sidecar/sim/advise"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
	"github.com/conch-serving/conch/tritonctl/progress"
	"github.com/conch-serving/conch/tritonctl/reporting"
)

// window is what conch's statistics of a model cover.
const window = 5 * time.Second

// Options of the command.
type Options struct {
	*factory.Factory
	seeds, repeats int
	length, within time.Duration
	measure, yes   bool
	share          float64
	grid           string
	page           reporting.Destination
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f, seeds: 5, repeats: 6, length: time.Minute, within: 30 * time.Second, share: .1}
	c := &cobra.Command{
		Use:   "advise [TRACE]",
		Short: "Say what Conch would gain with your traffic",
		Long: `advise simulates the models, GPUs, placement and profiles that a running conch
sees, in any mode: under your Triton servers as they are, a queue per server and
per model with the dynamic_batching of your config.pbtxt; and under Conch. The
traffic is a trace of tritonctl record, or what arrives within the next minute
(--for; --for 0 generates it at the present rates).

How long batches take is taken from, in this order: --grid; --measure, which asks,
and then, while it looks at the traffic, sends generated batches of 1, 2, 4, ... rows
of zeros to the servers, at most --within so long and for at most --share of each
server's time; conch's profiles, declared or measured; the
servers' own statistics. If none of them tells more than single rows, advise gives
the gain for several cases.

The range behind "Expect" is that within which measurements lay, of what was simulated
for some loads; where 1 is in it, no gain can be promised.

In observe, the requests that were bad while it looked at the traffic, after the
generated batches, are held against its simulation of the same requests: where the two
do not agree, advise gives no figure. A trace and --for 0 are held against nothing.

tritonctl gpu advise answers another question: whether the load of late wants
more or fewer GPUs.`,
		Example: `  tritonctl advise
  tritonctl advise --measure --html advice.html
  tritonctl advise --grid grid.yaml      # resnet50: {1: 8ms, 8: 15ms, 32: 40ms}
  tritonctl record --for 5m --file trace && tritonctl advise trace`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c.Context(), args, reporting.CommandLine(c, args))
		},
	}
	flags := c.Flags()
	o.page.Flags(c)
	flags.IntVar(&o.seeds, "seeds", o.seeds, "repetitions: the range is never less than their spread")
	flags.DurationVar(&o.length, "for", o.length, "how long to look at the traffic; 0 takes the present rates")
	flags.BoolVar(&o.measure, "measure", false, "send a few generated batches of each size to the servers meanwhile")
	flags.BoolVarP(&o.yes, "yes", "y", false, "do not ask before --measure")
	flags.Float64Var(&o.share, "share", o.share, "largest part of a server's time that --measure may take")
	flags.DurationVar(&o.within, "within", o.within, "longest that --measure may take; what was timed until then counts")
	flags.IntVar(&o.repeats, "repeats", o.repeats, "batches of each size that --measure sends")
	flags.StringVar(&o.grid, "grid", "", "YAML file with the time of batches by model and rows")
	return c
}

func (o *Options) run(ctx context.Context, args []string, command string) error {
	if err := o.page.Check(); err != nil {
		return err
	}
	if o.seeds < 1 || o.seeds > 100 {
		return fmt.Errorf("%w: --seeds %d is not from 1 to 100", factory.ErrUsage, o.seeds)
	}
	if o.length < 0 {
		return fmt.Errorf("%w: --for %v is below 0", factory.ErrUsage, o.length)
	}
	if o.within <= 0 || o.within > time.Hour {
		return fmt.Errorf("%w: --within %v is not above 0 and at most an hour", factory.ErrUsage, o.within)
	}
	conch, err := o.Client()
	if err != nil {
		return err
	}
	var task *progress.Task
	in := advise.Input{Compare: o.page.Wanted(), Grids: map[string]advise.Grid{}, Progress: func(done, all float64, text string) { task.At(done, all, text) }}
	for i := range o.seeds {
		in.Seeds = append(in.Seeds, uint64(i+1))
	}
	if o.grid != "" {
		if in.Grids, err = readGrids(o.grid); err != nil {
			return err
		}
	}
	declared := slices.Sorted(maps.Keys(in.Grids))
	notes, err := o.look(ctx, conch, args, &in)
	if err != nil {
		return err
	}
	if err := seen(ctx, conch, &in); err != nil {
		return err
	}
	for _, name := range declared {
		if !slices.ContainsFunc(in.Snapshot.GetModels(), func(m *policy.Model) bool { return m.GetName() == name }) {
			return fmt.Errorf("%w: %s: conch has no model %q; tritonctl model ls shows those there are", factory.ErrUsage, o.grid, name)
		}
	}
	task = o.Begin("simulating")
	a, err := advise.Make(ctx, in)
	if err != nil {
		return err
	}
	page := a.Page(in)
	page.Notes, page.Command = append(page.Notes, notes...), command
	if err := o.page.Write(o.Factory, page.HTML); err != nil {
		return err
	}
	return o.Print(a, func(t *output.Table) {
		for _, line := range append(a.Text, notes...) {
			t.Line(line)
		}
	})
}

// seen is what conch knows of its servers.
func seen(ctx context.Context, conch *client.Client, in *advise.Input) error {
	raw, err := conch.Snapshot(ctx)
	if err != nil {
		return err
	}
	in.Snapshot = &policy.Snapshot{}
	if err := protojson.Unmarshal(raw, in.Snapshot); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	models, err := conch.Models(ctx)
	if err != nil {
		return err
	}
	version, err := conch.Version(ctx)
	if err != nil {
		return err
	}
	// While the servers batch, their own statistics are what conch has observed.
	observing := version.Mode == "observe"
	if !observing {
		in.Seen = nil
	}
	in.Shared = observing && version.Driver == "attach"
	in.Batching = map[string]advise.Batching{}
	for _, m := range models {
		if line := m.DeclaredAlphaSeconds + m.DeclaredBetaSeconds; in.Shared && line > 0 && in.Grids[m.Name] == nil && !in.Measured(m.Name, m.MaxBatchSize) {
			last := max(2, m.MaxBatchSize)
			in.Grids[m.Name] = advise.Grid{1: seconds(line), last: seconds(m.DeclaredBetaSeconds + float64(last)*m.DeclaredAlphaSeconds)}
		}
		in.Batching[m.Name] = advise.Batching{Dynamic: m.DynamicBatching, Delay: time.Duration(m.MaxQueueDelaySeconds * 1e9)}
	}
	return nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// look has the batches timed that --measure asks for, and looks at the traffic meanwhile. What arrives depends little on them:
// only callers that wait for answers before they send more are slowed down, by --share at most.
func (o *Options) look(ctx context.Context, conch *client.Client, args []string, in *advise.Input) (notes []string, err error) {
	length, what := o.length, "looking at the traffic"
	if len(args) > 0 {
		length = 0
	}
	if o.measure {
		if err := o.confirm(); err != nil {
			return nil, err
		}
		if length == 0 {
			what = "sending generated batches"
		} else {
			what += " and sending generated batches"
		}
		length = max(length, o.within)
	}
	if length > 0 {
		o.Begin("%s", what).Lasts(length)
	}
	both, ctx := errgroup.WithContext(ctx)
	begin, recorded := time.Now(), make(chan struct{})
	both.Go(func() (err error) {
		defer close(recorded)
		in.Traffic, err = o.traffic(ctx, conch, args)
		return err
	})
	both.Go(func() (err error) {
		if o.measure {
			if notes, err = o.timed(ctx, conch, in); err != nil {
				return err
			}
		}
		if len(args) > 0 { // what is seen now is no recording's
			return nil
		}
		in.SeenFrom = time.Since(begin)
		in.Seen, in.SeenAtMost, err = fare(ctx, conch.Models, recorded)
		return err
	})
	return notes, both.Wait()
}

// fare is which part of each model's requests is late or dropped until the recording has ended, and which part is not known to be good, from window to window of conch's
// statistics; empty where that is no whole window. Generated batches are not to be under way: requests wait for them.
func fare(ctx context.Context, models func(context.Context) ([]api.Model, error), recorded <-chan struct{}) (bad, atMost map[string]float64, err error) {
	type sum struct{ rate, bad, good float64 }
	sums := map[string]sum{}
	for {
		select {
		case <-recorded:
			bad, atMost = map[string]float64{}, map[string]float64{}
			for name, s := range sums {
				if s.rate > 0 {
					bad[name], atMost[name] = s.bad/s.rate, 1-s.good/s.rate
				}
			}
			return bad, atMost, nil
		case <-time.After(window):
		}
		all, err := models(ctx)
		if err != nil {
			return nil, nil, err
		}
		for _, m := range all {
			s := sums[m.Name]
			sums[m.Name] = sum{s.rate + m.Rate, s.bad + m.Rate*m.LateRate, s.good + m.Goodput}
		}
	}
}

// traffic is a recording, or what arrives from now on; nil means the present rates.
func (o *Options) traffic(ctx context.Context, conch *client.Client, args []string) (*advise.Traffic, error) {
	var source io.Reader
	switch {
	case len(args) > 0:
		file, err := os.Open(args[0])
		if err != nil {
			return nil, fmt.Errorf("%w: %w", factory.ErrUsage, err)
		}
		defer file.Close() //nolint:errcheck // it is only read
		source = file
	case o.length == 0:
		return nil, nil
	default:
		var recorded bytes.Buffer
		got, err := conch.Record(ctx, o.length, &recorded)
		if err != nil {
			return nil, err
		}
		if got.Requests == 0 {
			return nil, fmt.Errorf("no request arrived within %v: send some of your clients to conch, then ask again", o.length)
		}
		source = &recorded
	}
	traffic, err := advise.ReadTraffic(source)
	if err != nil && len(args) > 0 {
		err = fmt.Errorf("%s: %w", args[0], err)
	}
	return traffic, err
}
