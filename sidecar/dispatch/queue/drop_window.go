// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// window is Symphony's window drop, which it shares with Nexus (Symphony,
// section 3.2, GETBATCH "prematurely drop the head of the queue in order to
// maintain a larger target batch size"). A few heads whose deadlines are near
// would force a small batch, and small batches make the requests behind them late
// as well. So the batch is held at the largest size that the rate allows, and
// heads that cannot finish in a batch of that size are given up, even if a
// smaller batch could save them.
type window struct{}

func (window) Name() string  { return "window" }
func (window) bounded() bool { return true }

func (window) hold(l *Load, _ float64) (int, Time) { return l.Model.Reach, 0 }
