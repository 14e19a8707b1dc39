// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package try is `tritonctl policy try`.
package try

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
	"github.com/conch-serving/conch/sidecar/sim/try"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
	"github.com/conch-serving/conch/tritonctl/reporting"
)

// options are the command's inputs.
type options struct {
	f                          *factory.Factory
	snapshot, snapshots, trace string
	set                        map[string]string
	outcome, explain           bool
	run                        try.Options
	page                       reporting.Destination
	command                    string
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &options{f: f}
	c := &cobra.Command{
		Use:   "try POLICY",
		Short: "Run a policy on a snapshot, without conch: plan, reasons, violations, outcome",
		Long: `try runs a policy on a snapshot as conch does, and changes nothing anywhere. It
shows the plan, why each model is where it is, what conch would refuse of it, and
what the simulator makes of it. A snapshot is JSON or protobuf, as tritonctl
record --snapshot writes it. docs/policies.md is written around this command.`,
		Example: `  tritonctl policy try static --snapshot snapshot.json
  tritonctl policy try gpulet --snapshot snapshot.json --html gpulet.html
  tritonctl policy try gpulet --snapshot snapshot.json --set interference=off -o json
  tritonctl policy try mine --executable ./mine --snapshots many.jsonl -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			o.run.Policy, o.command = args[0], reporting.CommandLine(c, args)
			o.run.Outcome = o.outcome
			if !c.Flags().Changed("outcome") {
				o.run.Outcome = o.snapshots == ""
			}
			return o.try(c.Context())
		},
	}
	c.Flags().StringVar(&o.snapshot, "snapshot", "", "file with one snapshot (- is standard input)")
	c.Flags().StringVar(&o.snapshots, "snapshots", "", "file with a snapshot of JSON in each line (- is standard input)")
	c.Flags().StringVar(&o.trace, "traffic", "", "trace of tritonctl record to evaluate with; default: generated from the snapshot's rates")
	c.Flags().StringToStringVar(&o.set, "set", nil, "a parameter of the policy, NAME=VALUE (repeatable)")
	c.Flags().StringVar(&o.run.Executable, "executable", "", "program of a policy of your own; POLICY is then what you call it")
	c.Flags().DurationVar(&o.run.Deadline, "deadline", time.Second, "time of an executable for one plan")
	c.Flags().Uint32Var(&o.run.Evaluations, "evaluations", 256, "plans that the policy may have evaluated for one snapshot")
	c.Flags().DurationVar(&o.run.Length, "length", 0, "how much traffic is generated (default: as the snapshot says, else 10s)")
	c.Flags().BoolVar(&o.outcome, "outcome", true, "simulate the plan (default for --snapshot; off for --snapshots)")
	c.Flags().BoolVar(&o.explain, "explain", true, "say of each model why it is where it is")
	o.page.Flags(c)
	c.MarkFlagsMutuallyExclusive("snapshot", "snapshots")
	c.MarkFlagsMutuallyExclusive("html", "snapshots")
	c.MarkFlagsMutuallyExclusive("open", "snapshots")
	return c
}

func (o *options) try(ctx context.Context) (err error) {
	if o.snapshot == "" && o.snapshots == "" {
		return fmt.Errorf("%w: policy try needs --snapshot FILE, which tritonctl record --snapshot writes, or --snapshots FILE with one in each line", factory.ErrUsage)
	}
	if err := o.page.Check(); err != nil {
		return err
	}
	o.run.Parameters = o.set
	if o.trace != "" {
		file, err := os.Open(o.trace)
		if err != nil {
			return fmt.Errorf("%w: --traffic: %w", factory.ErrUsage, err)
		}
		o.run.Traffic, err = evaluate.Read(file)
		_ = file.Close() // it was only read
		if err != nil {
			return fmt.Errorf("%s: %w", o.trace, err)
		}
	}
	session, err := try.Open(ctx, o.run)
	if err != nil {
		return fmt.Errorf("%w: %w", factory.ErrUsage, err)
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	if o.snapshots != "" {
		return o.many(ctx, session)
	}
	s, err := o.read(o.snapshot)
	if err != nil {
		return err
	}
	t, err := session.Explained(ctx, s)
	if err != nil {
		return err
	}
	if err := o.paint(ctx, session, s, t); err != nil {
		return err
	}
	if err := o.show(t); err != nil {
		return err
	}
	return failure(t)
}

// paint writes the page, where one is wanted.
func (o *options) paint(ctx context.Context, session *try.Session, s *policy.Snapshot, t *try.Trial) error {
	if !o.page.Wanted() {
		return nil
	}
	task := o.f.Begin("simulating other rates")
	defer task.End()
	page, err := session.Page(ctx, s, t, func(done, all float64) { task.At(done, all, "") })
	if err != nil {
		return err
	}
	page.Command = o.command
	return o.page.Write(o.f, page.HTML)
}

func (o *options) read(path string) (*policy.Snapshot, error) {
	if path != "-" {
		s, err := try.ReadSnapshot(path)
		if errors.As(err, new(*fs.PathError)) {
			err = fmt.Errorf("%w: --snapshot: %w", factory.ErrUsage, err)
		}
		return s, err
	}
	data, err := io.ReadAll(o.f.In)
	if err != nil {
		return nil, err
	}
	return try.Decode(data)
}

// longestLine of a file of snapshots: a thousand models with their profiles.
const longestLine = 64 << 20

// many runs one snapshot after the other.
func (o *options) many(ctx context.Context, session *try.Session) error {
	in, all := o.f.In, int64(0)
	if o.snapshots != "-" {
		file, err := os.Open(o.snapshots)
		if err != nil {
			return fmt.Errorf("%w: --snapshots: %w", factory.ErrUsage, err)
		}
		defer file.Close() //nolint:errcheck // it was only read
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			all = info.Size()
		}
		in = file
	}
	task, done := o.f.Begin("asking %s", o.run.Policy), 0
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 1<<20), longestLine)
	began, count, bad := time.Now(), 0, 0
	for number := 1; lines.Scan(); number++ {
		task.At(float64(done), float64(all), fmt.Sprintf("snapshot %d", count+1))
		done += len(lines.Bytes()) + 1
		text := strings.TrimSpace(lines.Text())
		if text == "" {
			continue
		}
		s, err := try.Decode([]byte(text))
		if err != nil {
			return fmt.Errorf("%s, line %d: %w", o.snapshots, number, err)
		}
		t, err := session.Run(ctx, s)
		if err != nil {
			return err
		}
		count++
		if failure(t) != nil {
			bad++
		}
		if err := task.Aside(func() error { return o.line(t) }); err != nil {
			return err
		}
	}
	task.End()
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", o.snapshots, err)
	}
	seconds := time.Since(began).Seconds()
	fmt.Fprintf(o.f.Err, "%d snapshots in %.2f s, %.0f a second; %d without a good plan\n", count, seconds, float64(count)/max(seconds, 1e-9), bad)
	if bad > 0 {
		return fmt.Errorf("%d of %d snapshots got no good plan", bad, count)
	}
	return nil
}

// encoded is a trial as JSON: one line.
type encoded struct {
	*try.Trial
	Plan    json.RawMessage `json:"plan,omitempty"`
	Outcome json.RawMessage `json:"outcome,omitempty"`
}

func encode(t *try.Trial) (encoded, error) {
	e := encoded{Trial: t}
	var err error
	marshal := protojson.MarshalOptions{UseProtoNames: true}
	if t.Plan != nil {
		if e.Plan, err = marshal.Marshal(t.Plan); err != nil {
			return e, err
		}
	}
	if t.Outcome != nil {
		e.Outcome, err = marshal.Marshal(t.Outcome)
	}
	return e, err
}

func (o *options) line(t *try.Trial) error {
	if o.f.Format == "table" {
		fmt.Fprintf(o.f.Out, "snapshot %d: %s\n", t.Revision, summary(t))
		return nil
	}
	e, err := encode(t)
	if err != nil {
		return err
	}
	return json.NewEncoder(o.f.Out).Encode(e)
}

func (o *options) show(t *try.Trial) error {
	if o.f.Format == "json" {
		return o.line(t)
	}
	e, err := encode(t)
	if err != nil {
		return err
	}
	return output.Print(o.f.Out, o.f.Format, e, func(table *output.Table) { o.draw(table, t) })
}

func (o *options) draw(table *output.Table, t *try.Trial) {
	table.Line(fmt.Sprintf("%s %s on snapshot %d: %s, in %s", t.Policy, t.Version, t.Revision, summary(t), t.Took.Round(time.Microsecond)))
	if t.Plan == nil {
		return
	}
	busy := map[string]*policy.PartitionOutcome{}
	for _, p := range t.Outcome.GetPartitions() {
		busy[p.GetPartition()] = p
	}
	table.Row("PARTITION", "ON", "SHARE", "RANK", "BUSY", "SERVES")
	for _, p := range t.Plan.GetPartitions() {
		on := strings.Join(p.GetGpus(), "+")
		if p.OnCPU() {
			on = "cpu"
		}
		used := "-"
		if b := busy[p.GetId()]; b != nil {
			used = output.Percent(b.GetBusyShare())
		}
		table.Row(p.GetId(), on, fmt.Sprintf("%d%%", p.GetThreadPercentage()), p.GetRank(), used, serves(p))
	}
	for _, u := range t.Plan.GetUnplaced() {
		table.Line("not placed: " + u.GetModel() + ": " + u.GetText())
	}
	for _, v := range t.Violations {
		table.Line("conch refuses: " + v)
	}
	if t.Outcome != nil {
		table.Row("MODEL", "GOODPUT/S", "BAD", "P50", "P99", "MEAN BATCH")
		for _, m := range t.Outcome.GetModels() {
			table.Row(m.GetModel(), output.Number(m.GetGoodput()), output.Percent(m.GetBadRate()), output.Milliseconds(m.GetLatencyP50Us()/1e6),
				output.Milliseconds(m.GetLatencyP99Us()/1e6), output.Mean(m.GetMeanBatch()))
		}
	}
	if o.explain {
		for _, text := range t.Explain {
			table.Line(strings.TrimRight(text, "\n"))
		}
	}
}

func serves(p *policy.Partition) string {
	parts := make([]string, 0, len(p.GetInstances()))
	for _, in := range p.GetInstances() {
		text := in.GetModel()
		if in.GetMaxBatch() > 0 {
			text += fmt.Sprintf(" b%d", in.GetMaxBatch())
		}
		if in.GetRate() > 0 {
			text += fmt.Sprintf(" %.4g/s", in.GetRate())
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

func summary(t *try.Trial) string {
	switch {
	case t.Error != "":
		return "no plan: " + t.Error
	case len(t.Violations) > 0:
		return fmt.Sprintf("a plan that conch refuses (%d violations): %s", len(t.Violations), t.Violations[0])
	case len(t.Outcome.GetViolations()) > 0:
		return "a plan that " + t.Outcome.GetViolations()[0]
	}
	instances := 0
	for _, p := range t.Plan.GetPartitions() {
		instances += len(p.GetInstances())
	}
	text := fmt.Sprintf("%d instances in %d partitions, %d models without a place", instances, len(t.Plan.GetPartitions()), len(t.Plan.GetUnplaced()))
	if t.Outcome != nil {
		text += fmt.Sprintf("; goodput %.1f/s, %.2f%% bad, %d GPUs", t.Outcome.GetGoodput(), 100*t.Outcome.GetBadRate(), t.Outcome.GetGpus())
	}
	return text
}

// failure makes a plan that could not be used the command's exit status.
func failure(t *try.Trial) error {
	switch {
	case t.Error != "":
		return fmt.Errorf("the policy gave no plan: %s", t.Error)
	case len(t.Violations) > 0:
		return fmt.Errorf("conch refuses the plan: %s", strings.Join(t.Violations, "; "))
	}
	return nil
}
