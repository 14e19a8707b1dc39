// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import "github.com/conch-serving/conch/sidecar/dispatch/queue"

// Lead learns how long before the end of an execution the next one is to be sent to the same server. Where executions of one GPU take turns, the next one
// waits there as it would have waited here, only that its batch is closed earlier; where a part of an execution runs beside others (launches, copies, kernels
// that do not fill the GPU), that part is won. So the lead grows as long as most of it is won, and shrinks to none where it is not: then one execution in
// leadProbe is still sent early, by a tenth of what it takes, to see whether that has changed.
//
// What is won is measured: an execution by itself takes as long as its profile says, times a bias that executions without a lead show; what one with a
// lead takes less than that, from the end of the one before it to its own, is won. The part of the lead that is won is the slope of a line through the origin,
// by least squares, so that long leads say more than short ones, which are lost in the jitter.
//
// The zero value is ready. It is not for concurrent use.
type Lead struct {
	length queue.Time
	bias   float64 // of executions alone, over their profile; 0: none was seen
	since  int     // executions since one was alone
	asked  int     // how often Length was
	// Decaying sums over executions with a lead: of its square, and of it times what was won, in square nanoseconds.
	squares, products float64
}

const (
	// leadMost is the longest lead as a part of the execution that it is before the end of, leadLeast the shortest.
	leadMost, leadLeast = .8, .05
	// leadProbe is how often a longer lead is tried, or one at all: at least leadTry of the execution, and leadFurther times the present lead.
	leadProbe            = 8
	leadTry, leadFurther = .1, 1.1
	// leadMemory is how many executions are remembered.
	leadMemory = 16
	// The lead goes to leadMore times what is won, and leadStep of the execution: so it grows where all of it is won, and is only a little longer than what is.
	leadMore, leadStep = 1.1, .03
	// leadAlone is how many executions with a lead may follow each other until one goes without: the bias would not be known any more.
	leadAlone = 32
)

// Length is how long before the predicted end of an execution that takes so long alone the next one is to be sent; 0: not before it has ended.
func (l *Lead) Length(alone queue.Time) queue.Time {
	l.asked++
	of := float64(alone)
	length := float64(l.length)
	switch {
	case l.since >= leadAlone:
		return 0
	case l.asked%leadProbe == 0:
		length = max(leadFurther*length, leadTry*of)
	case length < leadLeast*of:
		return 0
	}
	return queue.Time(min(length, leadMost*of))
}

// Ends is how long after the end of the execution before it one is expected to end that takes so long alone and was sent early by so much.
func (l *Lead) Ends(alone, early queue.Time) queue.Time {
	return queue.Time(l.biased(alone) - l.part()*float64(early))
}

// Held is the length that it has come to, of which [Lead.Length] makes that of one execution.
func (l *Lead) Held() queue.Time { return l.length }

// Overlap is how much of an execution runs beside the one before it, where executions follow each other.
func (l *Lead) Overlap() queue.Time { return queue.Time(l.part() * float64(l.length)) }

// Alone counts an execution that ran beside no other: how long it took, and how long its profile says.
func (l *Lead) Alone(took, alone queue.Time) {
	l.since = 0
	of := min(max(float64(took)/float64(max(1, alone)), .5), 2) // one that was not known at all says nothing of others
	if l.bias == 0 {
		l.bias = of
		return
	}
	l.bias += (of - l.bias) / leadMemory
}

// After counts an execution that was sent early by so much before the one before it ended: how long it took from that end on, and how long its profile says.
func (l *Lead) After(early, took, alone queue.Time) {
	l.since++
	x, of := float64(early), float64(alone)
	if x < leadLeast*of {
		return
	}
	won := min(max(l.biased(alone)-float64(took), -x), 2*x)
	l.squares += x*x - l.squares/leadMemory
	l.products += x*won - l.products/leadMemory
	wanted := leadMore*l.part()*x + leadStep*of
	l.length += queue.Time((wanted - float64(l.length)) / leadMemory)
}

func (l *Lead) biased(alone queue.Time) float64 {
	if l.bias == 0 {
		return float64(alone)
	}
	return l.bias * float64(alone)
}

// part is the part of the lead that is won.
func (l *Lead) part() float64 {
	return min(1, max(0, l.products/max(1, l.squares)))
}
