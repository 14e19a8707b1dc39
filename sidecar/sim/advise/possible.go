// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Possible is the answer for one case of what is not known.
type Possible struct {
	// Ratio is beta/alpha of l(b) = beta + alpha*b for the models of which only l(1) is known; Eight is l(8)/l(1), which it makes.
	Ratio float64 `json:"beta_over_alpha"`
	Eight float64 `json:"eight_rows_over_one"`
	// Triton and Conch are the rates that they hold, in requests per second; Gain is Conch's over Triton's.
	Triton float64 `json:"triton"`
	Conch  float64 `json:"conch"`
	Gain   float64 `json:"gain"`
}

// ratios of beta to alpha that are tried: from a batch that costs as much as its rows one by one, to one that costs little more than one row.
var ratios = [...]float64{0, 1, 3, 10}

// possible answers for each of the ratios.
func (a *Advice) possible(ctx context.Context, w *world) error {
	seeds := w.in.Seeds[:min(2, len(w.in.Seeds))]
	var names []string
	for _, h := range w.open {
		names = append(names, h.model)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	w.phases = 2 * len(ratios)
	for _, ratio := range ratios {
		for _, h := range w.open {
			h.ratio = ratio
		}
		if err := w.uncover(ctx, append(slices.Clone(w.hidden), w.open...), w.rate); err != nil {
			return err
		}
		triton, err := w.goodput(ctx, tritonSide, seeds)
		if err != nil {
			return err
		}
		conch, err := w.goodput(ctx, conchSide, seeds)
		if err != nil {
			return err
		}
		p := Possible{Ratio: ratio, Eight: (ratio + 8) / (ratio + 1), Triton: triton.Rate, Conch: conch.Rate}
		if triton.Rate > 0 {
			p.Gain = conch.Rate / triton.Rate
		}
		a.Possible = append(a.Possible, p)
	}
	a.Missing = append(a.Missing, "how long batches of more than one row take of "+strings.Join(names, ", "))
	a.Text = append(a.Text, fmt.Sprintf("%.0f requests per second were observed. How long batches of more than one row take is not known of %s, so that the gain is a range:", a.Rate, strings.Join(names, ", ")))
	for _, p := range a.Possible {
		gain := "at no rate does Triton hold the SLOs, and Conch holds %.0f requests per second"
		if p.Triton > 0 {
			gain = fmt.Sprintf("Triton's own batching holds %.0f requests per second, and Conch would hold %%.0f: %.2fx", p.Triton, p.Gain)
		}
		a.Text = append(a.Text, fmt.Sprintf("  if 8 rows take %.1f times as long as one (beta/alpha = %.0f): "+gain+".", p.Eight, p.Ratio, p.Conch))
	}
	a.Text = append(a.Text, "`tritonctl advise --measure` sends a few generated batches of each size to the servers, at a small share of their time, and then gives one figure.")
	for _, n := range a.Notes {
		a.Text = append(a.Text, "Not known: "+n)
	}
	return nil
}
