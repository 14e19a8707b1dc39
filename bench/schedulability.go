// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/sidecar/sim/schedulability"
)

// everyUnseen is the stride through the mixes of tables that seeds draw; it has no factor of 3.
const everyUnseen = 200

// schedulability counts the mixes of nine models that policies schedule on four GPUs, and those that any plan could.
func (b *bench) schedulability(ctx context.Context, r *figure.Report) error {
	r.Emulated = "everything: nothing runs; plans are judged by arithmetic, on a latency table that is ours (sidecar/sim/schedulability/table.csv)"
	shapes, err := schedulability.Table()
	if err != nil {
		return err
	}
	if err := b.countExact(ctx, r, shapes); err != nil {
		return err
	}
	study, err := schedulability.New(shapes, 0)
	if err != nil {
		return err
	}
	beyond := 0
	for _, c := range schedulability.Contenders() {
		if !b.wants(c.Name) {
			continue
		}
		every := max(1, c.Every)
		if b.quick {
			every *= 50
		}
		t, err := study.Count(ctx, c, every)
		if err != nil {
			return err
		}
		note := fmt.Sprintf("of all %d mixes", t.Asked)
		if every > 1 {
			note = fmt.Sprintf("of every %dth mix, %d; exact search schedules %.2f%% of them", every, t.Asked, 100*float64(t.Exact)/float64(t.Asked))
		}
		b.say(fmt.Sprintf("%-18s %d %s, in %.0f s so far", c.Name, t.Held, note, time.Since(b.start).Seconds()))
		r.Add("schedulability."+c.Name, 100*float64(t.Held)/float64(t.Asked), "%", note)
		if t.InUnits < t.Held {
			r.Add("schedulability."+c.Name+".in_units", 100*float64(t.InUnits)/float64(t.Asked), "%", fmt.Sprintf("with rates in units of %d/s, as exact search divides them; the others need the division that the plan promises", schedulability.Unit))
		}
		beyond += t.Beyond
		if c.Name == "conch" {
			r.Add("schedulability.conch.ratio_to_exact", float64(t.InUnits)/float64(max(1, t.Exact)), "ratio", "mixes that conch schedules over those that exact search does, on the same sample")
		}
	}
	r.Add("schedulability.beyond_exact", float64(beyond), "mixes", "that a policy schedules and exact search does not, all policies together: by dividing rates in other ways than in units")
	return b.unseenTables(ctx, r)
}

// countExact counts what exact search schedules, with one partition a GPU, with two, and with as many as fit.
func (b *bench) countExact(ctx context.Context, r *figure.Report, shapes []schedulability.Shape) error {
	for _, cut := range []struct {
		name, note string
		parts      int
	}{
		{"exact_whole", "no plan without partitions schedules more", 1},
		{"exact_two", "no plan with two partitions a GPU schedules more", 2},
		{"exact", "no plan schedules more", 0},
	} {
		study, err := schedulability.New(shapes, cut.parts)
		if err != nil {
			return err
		}
		n, err := study.CountExact(ctx)
		if err != nil {
			return err
		}
		b.say(fmt.Sprintf("%-18s %d of all %d mixes", cut.name, n, schedulability.Mixes))
		r.Add("schedulability."+cut.name, 100*float64(n)/schedulability.Mixes, "%", fmt.Sprintf("of all %d mixes: %s, dividing rates in units of %d/s", schedulability.Mixes, cut.note, schedulability.Unit))
	}
	return nil
}

// unseenTables holds conch to exact search on tables that seeds draw.
func (b *bench) unseenTables(ctx context.Context, r *figure.Report) error {
	if !b.wants("unseen") {
		return nil
	}
	var ratios []float64
	for seed := b.seed; seed < b.seed+5; seed++ {
		study, err := schedulability.New(schedulability.Draw(seed), 0)
		if err != nil {
			return err
		}
		every := everyUnseen
		if b.quick {
			every *= 10
		}
		t, err := study.Count(ctx, schedulability.Contender{Name: "conch", Policy: "conch", Every: every}, every)
		if err != nil {
			return err
		}
		b.say(fmt.Sprintf("table of seed %d: conch %d, exact %d of %d", seed, t.InUnits, t.Exact, t.Asked))
		ratios = append(ratios, float64(t.InUnits)/float64(max(1, t.Exact)))
	}
	r.AddRuns("schedulability.unseen_tables.ratio_to_exact", ratios, "ratio", fmt.Sprintf("as conch.ratio_to_exact, on %d tables that seeds draw, every %dth mix", len(ratios), everyUnseen))
	return nil
}
