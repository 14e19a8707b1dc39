// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"slices"
	"time"

	"github.com/conch-serving/conch/sidecar/apply/mps"
)

// faultsEvery is how often MPS is asked for fatal faults.
const faultsEvery = time.Second

// watchFaults asks MPS whether one of its clients has made a GPU fault, until the
// reconciler ends. Each fault is sent to the loop once.
func (r *Reconciler) watchFaults(ctx context.Context) {
	was, mute := false, false
	for {
		is, err := r.o.Faulted(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if !mute {
				r.o.Logger.Warn("MPS cannot be asked for faults of its clients", "error", err)
			}
			mute = true
		default:
			if is && !was {
				r.box.put(func(l *loop) { l.faulted() })
			}
			was, mute = is, false
		}
		if !sleep(ctx, faultsEvery) {
			return
		}
	}
}

// faultReason is why a server is started again that need not have done anything.
const faultReason = "a client of MPS has made the GPU fault, which takes all clients on it along"

// faulted restarts every server that is a client of MPS: the daemon does not report
// the GPU of the fault, the surviving clients answer with errors, and MPS accepts no
// new client before they have ended.
func (l *loop) faulted() {
	var taken []string
	for _, v := range l.servers {
		if v.process == nil || v.Broken != "" {
			continue
		}
		spec := v.process.Spec()
		if mps.Of(spec.Partition, spec.GPU, l.r.o.MPS).Enforced {
			v.Broken = faultReason
			taken = append(taken, v.Partition)
		}
	}
	slices.Sort(taken)
	taken = slices.Compact(taken)
	l.r.o.Logger.Error("a client of MPS has made the GPU fault; its neighbours are started again", "partitions", taken)
	if l.r.o.OnFault != nil {
		l.r.o.OnFault(taken)
	}
}
