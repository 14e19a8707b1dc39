// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package apply turns the difference between two plans into processes, loaded
// models and a route table, make-before-break: stage files, start processes,
// load, warm up, swap the route table, drain, unload, stop. Every step up to
// the swap can be undone, and is when a later one fails: then what served
// before still serves. Steps are written to a journal before they run, so that
// a crash leaves nothing unknown behind.
package apply
