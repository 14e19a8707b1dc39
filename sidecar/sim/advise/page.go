// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/conch-serving/conch/sidecar/sim/report"
)

// compare runs both sides at the observed rate.
func (a *Advice) compare(ctx context.Context, w *world) error {
	for _, s := range []struct {
		who   side
		name  string
		found report.Side
	}{{tritonSide, "Triton as it is", report.Side{Held: a.Triton}}, {conchSide, "Conch", report.Side{Held: a.Conch}}} {
		r, err := w.run(ctx, s.who, 0, w.rate, w.in.Seeds[0])
		if err != nil {
			return err
		}
		s.found.Name, s.found.Result, s.found.Curve = s.name, r, report.Trials(s.found.Held)
		a.Sides = append(a.Sides, s.found)
	}
	return nil
}

// Page is the advice as a report that stands alone. The snapshot is Input's.
func (a *Advice) Page(in Input) *report.Page {
	p := &report.Page{
		Title: "What Conch would gain", Question: "How much more traffic would the same GPUs hold at the same SLOs under Conch than under Triton as it is?",
		Setup: report.World(in.Snapshot), Unknown: append([]string(nil), a.Notes...), Sides: a.Sides, Asked: a.Rate,
	}
	from := "generated at the present rates and burstiness"
	if in.Traffic != nil {
		from = fmt.Sprintf("recorded, %v long; each repetition draws another recording from pieces of it", in.Traffic.Length.Round(100*time.Millisecond))
	}
	p.Setup = append(p.Setup,
		report.Fact{Name: "Traffic", Text: from},
		report.Fact{Name: "Observed", Text: report.Rate(a.Rate) + " requests per second, all models"},
		report.Fact{Name: "Triton as it is", Text: "a queue per server and model, the dynamic batcher of each config.pbtxt, each request to the server with the fewest outstanding ones, which runs all steps of an ensemble"},
		report.Fact{Name: "Conch", Text: "its defaults: discipline adaptive, the present placement"},
		report.Fact{Name: "Repetitions", Text: fmt.Sprintf("%d seeds; rates are searched within %.0f%%", len(in.Seeds), 100*tolerance)})
	if a.Ratio > 0 {
		p.Setup = append(p.Setup, report.Fact{Name: "Spread over the repetitions", Text: fmt.Sprintf("%.2f to %.2f", a.SpreadLow, a.SpreadHigh)})
	}
	p.Verdict = a.verdict()
	if a.Own != nil {
		p.Verdict.Text += " " + a.Own.sentence(a.GPUs, len(in.Seeds))
	}
	if len(a.Sides) > 0 {
		p.Tables = append(p.Tables, report.ModelTable(a.Sides))
	}
	if len(a.Possible) > 0 {
		t := report.Table{Title: "What it would be", Caption: "By how much of a batch's time does not depend on its rows, which is not known", Head: []string{"8 rows take, times one row", "Triton holds, req/s", "Conch holds, req/s", "Conch over Triton"}}
		for _, q := range a.Possible {
			gain := "-"
			if q.Triton > 0 {
				gain = fmt.Sprintf("%.2f", q.Gain)
			}
			t.Rows = append(t.Rows, []string{fmt.Sprintf("%.1f", q.Eight), report.Rate(q.Triton), report.Rate(q.Conch), gain})
		}
		p.Tables = append(p.Tables, t)
	}
	for _, line := range a.Text {
		inVerdict := a.Enough && strings.Contains(line, "Conch would")
		if !inVerdict && !strings.HasPrefix(line, "Not known: ") {
			p.Notes = append(p.Notes, line)
		}
	}
	return p
}

// verdict is the advice in one sentence.
func (a *Advice) verdict() report.Verdict {
	switch {
	case len(a.Possible) > 0:
		low, high := a.Possible[0].Gain, a.Possible[0].Gain
		for _, p := range a.Possible {
			low, high = min(low, p.Gain), max(high, p.Gain)
		}
		return report.Verdict{Text: fmt.Sprintf("Conch would hold %.2f to %.2f times what Triton holds, depending on how long batches of more than one row take, which is not known.", low, high), Label: "a range", Judgement: report.Unsure}
	case !a.Enough:
		return report.Verdict{Text: strings.Join(a.Text, " "), Label: "not known", Judgement: report.Unsure}
	case a.Ratio == 0 && a.Triton.Low > 0:
		v := report.Verdict{Text: a.unsteady(), Label: "not steady", Judgement: report.Unsure}
		switch a.sure(a.Triton, a.Conch) {
		case -1:
			v.Label, v.Judgement = "a loss", report.Bad
		case 1:
			v.Label, v.Judgement = "a gain", report.Good
		}
		return v
	case a.Ratio == 0:
		return report.Verdict{Text: fmt.Sprintf("Triton holds the SLOs at no rate at all in the simulator, and Conch holds %s requests per second (%s to %s over %d seeds).",
			report.Rate(a.Conch.Rate), report.Rate(a.Conch.Low), report.Rate(a.Conch.High), len(a.Conch.All)), Label: "nothing to compare with", Judgement: report.Unsure}
	}
	text := fmt.Sprintf("Conch would hold %.2f times the traffic at the same SLOs in the simulation: %s requests per second where Triton's own batching holds %s. %s",
		a.Ratio, report.Rate(a.Conch.Rate), report.Rate(a.Triton.Rate), a.within())
	switch {
	case a.Low > 1:
		return report.Verdict{Text: text + ".", Label: "a gain", Judgement: report.Good}
	case a.High < 1:
		return report.Verdict{Text: text + ". That is less.", Label: "a loss", Judgement: report.Bad}
	}
	return report.Verdict{Text: text + ". No gain can be promised.", Label: "no gain can be promised", Judgement: report.Unsure}
}
