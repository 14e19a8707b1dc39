// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/zoo"
)

// explain fills in the remarks of the reports that have some. What they say of figures follows the figures.
func explain(reports []*figure.Report) {
	for _, r := range reports {
		switch r.File {
		case "reproduce":
			r.Remarks = differences(r)
		case "reproduce-abacus":
			r.Remarks = abacusRemarks(r)
		case "compare":
			r.Remarks = matrixRemarks(r)
		case "ablation":
			r.Remarks = ablationRemarks()
		case "core":
			r.Remarks = coreRemarks(r)
		case "placements", "reproduce-placement":
			r.Remarks = []figure.Remark{{About: "Tables", Text: "[Policies compared](policies-compared.md) has the figures as tables, with what is compared, and why some are not what papers print."}}
		}
	}
}

// figures of a report by name.
type figures map[string]float64

func figuresOf(r *figure.Report) figures {
	all := figures{}
	if r != nil {
		for _, f := range r.Figures {
			all[f.Name] = f.Value
		}
	}
	return all
}

// have reports whether all of these were measured: a text about them is left out otherwise.
func (f figures) have(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { _, ok := f[name]; return !ok })
}

// compared is by how much a value is above or below another.
func compared(v, to float64) string {
	switch percent := 100 * (v/to - 1); {
	case percent >= .5:
		return fmt.Sprintf("%.0f%% above", percent)
	case percent <= -.5:
		return fmt.Sprintf("%.0f%% below", -percent)
	}
	return "the same as"
}

// fixed has three decimals.
func fixed(v float64) string { return fmt.Sprintf("%.3f", v) }

// mixes say how adaptive and eager with prefix drop do on all models of figure 9, and why.
func mixes(r *figure.Report) string {
	f := figuresOf(r)
	var b strings.Builder
	byDrop := true // of each pair of disciplines, that with prefix drop is ahead
	for _, kind := range []struct{ name, is string }{{"a100", "A100"}, {"gtx1080ti", "1080 Ti"}} {
		n := func(rule string) string { return "fig9." + kind.name + ".mixed." + rule + ".goodput" }
		adaptive, prefix, bound := n("adaptive"), n("eager_prefix"), "fig9."+kind.name+".mixed.gather.bound"
		if !f.have(adaptive, prefix, bound) {
			continue
		}
		fmt.Fprintf(&b, " On the %s `adaptive` holds %s req/s, %s the %s of eager with prefix drop; the gather bound leaves nobody more than %.0f%% above the latter.", kind.is,
			figure.Number(f[adaptive]), compared(f[adaptive], f[prefix]), figure.Number(f[prefix]), 100*(f[bound]/f[prefix]-1))
		swapped, exchanged := n("adaptive_prefix"), n("eager_reserve")
		byDrop = byDrop && f.have(swapped, exchanged) && f[swapped] > f[adaptive] && f[prefix] > f[exchanged] && f[prefix] > f[adaptive]
		if f.have(swapped, exchanged) {
			fmt.Fprintf(&b, " With the drop policies exchanged, `adaptive` with prefix drop holds %s and eager with `reserve` %s.", figure.Number(f[swapped]), figure.Number(f[exchanged]))
		}
		if all, of := n("adaptive.overall"), n("eager_prefix.overall"); f.have(all, of) {
			fmt.Fprintf(&b, " Judged by all requests together, `adaptive` holds %s, %s eager with prefix drop, %s.", figure.Number(f[all]), compared(f[all], f[of]), figure.Number(f[of]))
		}
	}
	if b.Len() > 0 && byDrop {
		b.WriteString(" So `adaptive` is behind by its drop policy, not by when it starts batches, and by the measure: here the worst of some three dozen models decides. Prefix drop gives up nobody who could still be served alone. " +
			"`reserve` gives up heads for the sake of larger batches. Fewer are bad in all then, but they are of few models: in single runs those that take long and gain little by company, SSDMobilenet and EfficientNetB7 on the A100.")
	}
	return b.String()
}

// around say what is measured past the peak and below it, and why it is not what section 3.5 wants.
func around(r *figure.Report) []figure.Remark {
	f := figuresOf(r)
	n := func(discipline, what string) string { return "resnet50." + discipline + "." + what }
	past := func(discipline string, percent int, what string) string {
		return fmt.Sprintf("overload.%s.%s", n(discipline, fmt.Sprintf("load%d", percent)), what)
	}
	below := func(discipline string, percent int, what string) string {
		return fmt.Sprintf("idle.%s.%s", n(discipline, fmt.Sprintf("load%d", percent)), what)
	}
	for _, d := range []string{"deferred", "adaptive"} {
		for _, percent := range []int{125, 400} {
			if !f.have(past(d, percent, "bad"), past(d, percent, "rows_per_batch")) {
				return nil
			}
		}
		for _, percent := range []int{25, 50, 75, 100} {
			if !f.have(below(d, percent, "share"), below(d, percent, "rows_per_batch"), below(d, percent, "gpus_used"), below(d, percent, "p50")) {
				return nil
			}
		}
	}
	cases, err := zoo.Cases()
	if err != nil {
		return nil
	}
	speed := func(rows float64) float64 {
		return rows / (cases[0].Profile.Beta.Seconds() + rows*cases[0].Profile.Alpha.Seconds())
	}
	// gains of goodput from the peak to four times its load, in percent: by batches that grow, and by GPUs that idle no more.
	gains := func(d string) (batches, idle float64) {
		batches = speed(f[past(d, 400, "rows_per_batch")])/speed(f[below(d, 100, "rows_per_batch")]) - 1
		return 100 * batches, 100 * (1/(1-f[below(d, 100, "share")]) - 1)
	}
	deferredBatches, deferredIdle := gains("deferred")
	adaptiveBatches, adaptiveIdle := gains("adaptive")
	v := func(name string) string { return figure.Number(f[name]) }
	shares := func(d string) string {
		return fmt.Sprintf("%.2f, %.2f and %.2f", f[below(d, 25, "share")], f[below(d, 50, "share")], f[below(d, 75, "share")])
	}
	return []figure.Remark{
		{
			About: "Past the peak, section 3.5",
			Text: fmt.Sprintf("At a load o past the peak goodput p the paper wants a bad share comparable to (o-p)/o. More would be a goodput below p; ours is less, so goodput is above p: at 125%% of its own peak deferred has %s bad and `adaptive` %s, where the relation has .2. "+
				"p is what is held with 1%% bad, and two things are left then. GPUs still idle, %.1f%% of their time under deferred and %.1f%% under `adaptive` (`load100`), because by chance there is sometimes nobody to serve; past the peak there always is. "+
				"And batches grow, from the peak to four times its load from %s rows to %s under deferred and from %s to %s under `adaptive`: among many who wait, the drop policy gives up those who would keep a batch small, and a row of a larger batch costs less GPU time. "+
				"The end of idling makes up to %.0f%% more goodput for deferred and %.0f%% for `adaptive`, larger batches %.0f%% and %.0f%%. "+
				"An autoscaler that takes the paper's N r/(1-r) from such a bad share asks for too few GPUs at first, and has to look again.",
				fixed(f[past("deferred", 125, "bad")]), fixed(f[past("adaptive", 125, "bad")]), 100*f[below("deferred", 100, "share")], 100*f[below("adaptive", 100, "share")],
				v(below("deferred", 100, "rows_per_batch")), v(past("deferred", 400, "rows_per_batch")), v(below("adaptive", 100, "rows_per_batch")), v(past("adaptive", 400, "rows_per_batch")),
				deferredIdle, adaptiveIdle, deferredBatches, adaptiveBatches),
		},
		{
			About: "Low load, section 3.5",
			Text: fmt.Sprintf("At a quarter, a half and three quarters of its own peak deferred idles %s of GPU time, and `adaptive` %s, where (p-o)/p is .75, .5 and .25. "+
				"Deferred is above it near the peak, because it fails its 1%% before its GPUs are always busy. Far below the peak it meets it again: fewer requests gather there in what the SLO leaves, and smaller batches take more time per request. "+
				"`adaptive` is %s at a quarter and %s at three quarters. While fewer GPUs are busy than the load needs it does not wait for a large batch: at a quarter it runs %s rows at once, deferred %s, and small batches cost GPU time. For that half of its requests are answered within %s ms, of deferred's within %s ms. "+
				"Both keep to the GPUs of low rank: at a quarter deferred used %s of 8 at all and `adaptive` %s, at a half %s and %s (`gpus_used`). An autoscaler that gives back N f GPUs by the idle share f gives back less under `adaptive` at low load than could be spared.",
				shares("deferred"), shares("adaptive"), compared(f[below("adaptive", 25, "share")], .75)+" it", compared(f[below("adaptive", 75, "share")], .25)+" it",
				v(below("adaptive", 25, "rows_per_batch")), v(below("deferred", 25, "rows_per_batch")), v(below("adaptive", 25, "p50")), v(below("deferred", 25, "p50")),
				v(below("deferred", 25, "gpus_used")), v(below("adaptive", 25, "gpus_used")), v(below("deferred", 50, "gpus_used")), v(below("adaptive", 50, "gpus_used"))),
		},
	}
}

// coreRemarks set Symphony's own scheduler beside the queue.
func coreRemarks(r *figure.Report) []figure.Remark {
	f := figuresOf(r)
	// Million requests per second of the scheduler that Symphony's authors published, with the 24 models and 1,000 GPUs of the figure.
	const low, high = .79, .89
	ours := "core.24x1000.requests_per_second"
	if !f.have(ours) {
		return nil
	}
	million := f[ours] / 1e6
	return []figure.Remark{{
		About: "Symphony's own scheduler",
		Text: fmt.Sprintf("The C++ scheduler that Symphony's authors published (nexuslb) was built and run alone, on a machine of two cores like this one: the same models of 1.082b+5.204 ms with an SLO of 100 ms, 24 of them on 1,000 GPUs, 99%% served in time. It scheduled .79 to .86 million requests a second with a model thread and the rank thread on a core each, and .86 to .89 million with both on one core. "+
			"`%s` is %.1f million on one core, %.1f to %.1f times that. With 64 models it did .75 to .79 million, and with two model threads and 4,000 GPUs 1.10 to 1.24. Offered 915,000 a second, more than its capacity of 840,000, it scheduled 39,000 to 62,000; `core.past` is what the queue does there. "+
			"The two were not run on the same day, and not measured alike: its threads keep real time with timers and poll, while the queue is called with the time, and only its own processor time counts.", ours, million, million/high, million/low),
	}}
}
