// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package forecast makes the predictions that the queue plans with: the latency of
// batches at a partition's share ([Table]), the time that Conch itself adds before
// the call ([Budget]), and the time that is kept back from deadlines because answers
// come later than predicted ([Margin]). It reads no clock: the dispatcher passes
// real time, the simulator virtual time, and both plan with the same predictions.
package forecast
