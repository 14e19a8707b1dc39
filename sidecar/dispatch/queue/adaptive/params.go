// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package adaptive

// Params are all constants of the rules. A field of zero turns its rule off.
type Params struct {
	// Idle: the load is low while more than this share of the executors is free.
	Idle float64

	// When a batch starts: StartAt.

	// Margin is the part of l(|B|) by which a batch that waits as long as it may starts
	// before it would be late, at least: where a further row takes next to no time, an
	// execution that takes a little longer than predicted would make all of it late.
	Margin float64
	// Stagger is the share of a batch that evenly staggered executors have left.
	Stagger float64
	// Light is the number of executors below which a model does not stagger.
	Light float64
	// WorthSlack is the part of the slack that may be spent on batches which start
	// before they are as large as they could be, WorthMost the most of it: with
	// executors to spare, small batches would keep all of them awake.
	WorthSlack, WorthMost float64
	// Crowd is how much earlier, in l(reach), a batch starts among models none of
	// which waits.
	Crowd float64
	// Haste is by how many times l(reach) a batch starts earlier for each unit of
	// dispersion above Torrent.
	Torrent, Haste float64
	// Quiet is how many l(1) must pass without an arrival, if company saves a row all
	// of it, where the dispersion is above Bursty.
	Bursty, Quiet float64
	// Scarce is the number of executors below which it takes long until one is free.
	Scarce float64

	// How many rows a batch has at most: MaxRows.

	// InTheWay is how much a long batch is in the way of others, MostInTheWay the
	// most.
	InTheWay, MostInTheWay float64
	// Bearable is the part of the SLO of others that they can wait behind a batch;
	// Dearer how much more such a batch may cost at most.
	Bearable, Dearer float64

	// Shielded is the part of l of a single request below which the slack of others is
	// too little for them to wait behind any batch, so that their SLO does not count.
	Shielded float64

	// Which batches may start at all: Unblocked.

	// Keep is how many executors are kept for each that tighter models need.
	Keep float64
	// Chance is the part of its requests that a model must lose without them, so that any
	// are kept.
	Chance float64
	// Lift is how many times its mean burst a model must be able to execute within its SLO on
	// all executors but one, so that it is held back.
	Lift float64
	// Calm is the load below which batches that are in the way start early only as far
	// as their models need it.
	Calm float64

	// What requests are given up for: Hold.

	// Gathers is how many of its own gathering times a batch leaves room for beside
	// the first, at most, where the model keeps few executors busy.
	Gathers float64
	// Plenty is the number of executors from which on it leaves less room, as one of
	// many is soon free.
	Plenty float64
	// Thrift is by how much less efficient than the best a batch may be, that is held on
	// to, at any load below 1 + Thrift.
	Thrift float64
	// Overload is the load from which on no batch starts only just in time. What models
	// need is reckoned with batches that are gathered at their rates; those that
	// wait for their turn grow larger, so that somewhat more than there seem to be
	// executors for can still be served.
	Overload float64
	// Edge is the part of its time by which a batch may then end late and still be in
	// time.
	Edge float64
}

// Defaults are the constants in use.
func Defaults() Params {
	return Params{
		Idle: .5, Margin: .05, Stagger: .5, Light: 1.4, WorthSlack: .2, WorthMost: .1, Crowd: 1, Torrent: 4, Haste: .3, Bursty: 2, Quiet: .06, Scarce: 8,
		InTheWay: .02, MostInTheWay: .3, Bearable: .8, Dearer: .3, Shielded: .7,
		Keep: 1, Chance: .001, Lift: 3, Calm: .75, Gathers: .7, Plenty: 8, Thrift: .1, Overload: 1.5, Edge: .25,
	}
}
