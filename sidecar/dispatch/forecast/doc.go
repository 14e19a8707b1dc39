// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package forecast is what the queue is told of the future: how long batches
// take at a partition's share ([Table]), what Conch itself adds before the call
// ([Budget]), and what is kept back from deadlines because answers come later
// than predicted ([Margin]). It is pure: the dispatcher feeds it real time, the
// simulator virtual time, so that both plan with the same knowledge.
package forecast
