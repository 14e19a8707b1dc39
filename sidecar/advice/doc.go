// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package advice says how many GPUs a load wants: Symphony's rule (section 3.5)
// over what was measured, made steady.
//
// The rule has two halves. With a bad rate r above its threshold, N GPUs are too
// few by N*r/(1-r). Below it, with a share f of the GPUs' time idle, N*f of them
// could go. Both rest on a discipline that defers: past its peak goodput p such a
// cluster has, of an offered load o, about (o-p)/o bad requests, and below it about
// (p-o)/p idle time. Idle is a share of time, not a number of unused GPUs: adaptive
// uses every partition now and then, to start a lone request at once.
//
// A cluster that grew and shrank with every window would never be at rest, so
// [Rule.Next] adds what the paper leaves to the autoscaler: a number must hold for
// a while, only whole GPUs count, the nearer the bad rate is to its threshold the
// less is given back, and a number of GPUs that was too few for a load is not
// returned to while the load is what it was, for half an hour at first.
//
// Everything is a function of its arguments. Live, sidecar/control feeds it from
// sidecar/observe; in simulations, sidecar/sim does. What Conch would gain over
// Triton's own batching is another question, which sidecar/sim/advise answers.
package advice
