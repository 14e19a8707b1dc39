// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package decide is the judgement of reconcile: from what is wanted and what is
// seen it says what should be under way, which places are routed to, and what is
// amiss. It is pure: no clock, no I/O, no memory. Package apply asks it again
// whenever something changed and does what it says.
//
// There is no plan of steps and nothing to undo or resume. A crash, a restart, a
// new plan in the middle of an old one and a server that lost a model are the
// same case: Decide looks at what is there and names the next useful things.
//
//   - A place is routed to when it is wanted, loaded at the wanted revision and
//     has answered a request.
//   - An old place goes on serving until enough of the wanted ones are ready, and
//     is torn down once its last lease is back (make before break).
//   - Where memory cannot hold both, the old place goes first and the model's
//     requests wait for the new one (break before make).
//   - A model whose files changed is loaded in one partition first, the canary;
//     the others follow once that one answers.
//   - What fails is tried again with a growing delay, and nothing else waits for it.
package decide
