// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package curve learns l(b), the time that a batch of b rows takes, of one model on
// one GPU type at one share, from executions and from what is known before any. It is
// pure: times come in with the executions.
//
// # What disturbs it
//
// Executions are noisy in two ways. Each differs a little from the next, which
// averages out. And now and then everything is slow for some seconds: a busy
// machine, a start, a neighbour. A few hundred executions of such a time agree with
// each other and are all wrong. So evidence is counted in seconds, not in executions:
// those of one second have one value together (a cell), and one second alone may be
// off by a third.
//
//   - A size's own value is the median of its seconds, each weighted by its age (half
//     after 5 s), and the mean of those that agree with the median.
//   - A second in which a well-known size was slow was slow for the others too: its
//     other cells are corrected by the same factor. So what was only measured during
//     a disturbance is right as soon as one size is known better.
//   - Calibrations are cells of one moment, however long ago, that lose weight slowly.
//
// # What is combined
//
// Before anything is measured there may be a shape: declared by an operator or
// estimated from the model's graph, each with its error bound; shapes are averaged by
// the inverse squares of their bounds. Without one, the line that fits the cells best
// stands for it. The logarithm of l(b) over that of the shape is then a Gaussian
// process over log b (kriging): half of its variance, the square of the shape's bound,
// is common to all sizes, the other half fades within an octave. It is conditioned on
// the sizes' own values, whose standard errors fall with the seconds that agree as
// n^-2. So a shape yields to a size's own executions only as far as they are many
// and agree, sizes in between follow their neighbours, and a value that was not
// confirmed for long falls back to the shape.
//
// Last, the means are made monotone in b, as a larger batch cannot be faster.
//
// [Learnt] also says how fast each size could be if only what is fresh counted. Where
// that is far below what is believed, the queue may probe.
package curve
