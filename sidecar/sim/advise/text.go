// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"fmt"
)

// write makes sentences of the figures.
func (a *Advice) write(seeds int, live bool) {
	from := "the recorded traffic"
	if live {
		from = "the present rates"
	}
	if a.Triton.Low == 0 {
		a.Text = append(a.Text, fmt.Sprintf(
			"Under %s, Triton's own batching holds the SLOs at no rate at all in the simulator, so there is nothing to compare with; Conch would hold %.0f requests per second (%.0f to %.0f over %d seeds).",
			from, a.Conch.Rate, a.Conch.Low, a.Conch.High, seeds), "Check the SLOs: `tritonctl model ls` shows them.")
	} else {
		a.Text = append(a.Text, fmt.Sprintf("%.0f requests per second were observed. With traffic like that, Triton's own batching holds %.0f requests per second on your %s with at most 1%% bad for every model, and Conch would hold %.0f.",
			a.Rate, a.Triton.Rate, gpus(a.GPUs), a.Conch.Rate))
		switch {
		case a.Ratio == 0:
			a.Text = append(a.Text, a.unsteady())
		case a.Low > 1:
			a.Text = append(a.Text, fmt.Sprintf("Conch would hold %.2fx the traffic at the same SLO in the simulation. %s.", a.Ratio, a.within()))
		case a.High < 1:
			a.Text = append(a.Text, fmt.Sprintf("Conch would hold less than Triton: %.2fx in the simulation. %s. Do not put it in control of these models.", a.Ratio, a.within()))
		default:
			a.Text = append(a.Text, fmt.Sprintf("No gain can be promised: %.2fx in the simulation. %s.", a.Ratio, a.within()))
		}
		if a.Needed > 0 && a.Needed < a.GPUs {
			a.Text = append(a.Text, fmt.Sprintf("Or the same on %d of your %s, with every model on each of them (in all of %d repetitions).", a.Needed, gpus(a.GPUs), seeds))
		}
	}
	if o := a.Own; o != nil {
		a.Text = append(a.Text, o.sentence(a.GPUs, seeds))
	}
	if p := a.Present; p != nil && p.Conch > 0 {
		triton := fmt.Sprintf("with Triton's own batching %d", p.Triton)
		if p.Triton == 0 {
			triton = fmt.Sprintf("with Triton's own batching %d do not hold them", a.GPUs)
		}
		a.Text = append(a.Text, fmt.Sprintf("The %.0f requests per second that were observed need %s with Conch, and %s.", a.Rate, gpus(p.Conch), triton))
	}
	for _, n := range a.Notes {
		a.Text = append(a.Text, "Not known: "+n)
	}
}

// unsteady says what can be said where there is no ratio, though Triton holds something.
func (a *Advice) unsteady() string {
	ranges := fmt.Sprintf("%.0f to %.0f requests per second where Triton holds %.0f to %.0f; the repetitions differ too much for a ratio.", a.Conch.Low, a.Conch.High, a.Triton.Low, a.Triton.High)
	switch a.sure(a.Triton, a.Conch) {
	case -1:
		return "Conch would hold less than Triton: " + ranges + " Do not put it in control of these models."
	case 1:
		return "Conch would hold more than Triton: " + ranges
	}
	return "No gain can be promised: " + ranges + " Single bursts decide: look at more traffic, and check the SLOs (`tritonctl model ls`)."
}

// sentence says what Conch would hold with servers of its own.
func (o *Own) sentence(n, seeds int) string {
	text := fmt.Sprintf("With a server of its own for each of %s (driver process), Conch would hold %.0f requests per second", gpus(n), o.Conch.Rate)
	if o.Ratio == 0 {
		return fmt.Sprintf("%s (%.0f to %.0f over %d seeds).", text, o.Conch.Low, o.Conch.High, seeds)
	}
	text = fmt.Sprintf("%s, %.2fx the traffic, in the simulation. %s.", text, o.Ratio, o.within())
	if o.Low <= 1 && o.High >= 1 {
		text += " No gain can be promised of that."
	}
	return text
}

func gpus(n int) string {
	if n == 1 {
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", n)
}
