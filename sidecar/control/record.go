// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"unicode"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/control/events"
)

// event writes down what happened, in the log and in the event log.
func (c *Control) event(e api.Event) {
	e.Time = c.clock.Now()
	e.Author = cmp.Or(e.Author, "conch")
	e.Message, e.Author, e.Reason = oneLine(e.Message), oneLine(e.Author), oneLine(e.Reason)
	e = c.events.Add(e)
	level := slog.LevelInfo
	if events.Grave(e.Kind) {
		level = slog.LevelWarn
	}
	c.log.Log(context.Background(), level, e.Message, "event", string(e.Kind), "id", e.ID, "author", e.Author, "reason", e.Reason)
	if c.told != nil {
		c.told(e)
	}
}

// longest message of an event: a server's whole traceback is in its own log.
const longest = 600

// oneLine makes a line of a table out of any text of a server.
func oneLine(s string) string {
	words := strings.Join(strings.Fields(strings.ReplaceAll(s, `\n`, " ")), " ")
	words = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, words)
	if runes := []rune(words); len(runes) > longest {
		return string(runes[:longest]) + "..."
	}
	return words
}

// Events gives those after id since, oldest first, as far as they are held.
func (c *Control) Events(since uint64) []api.Event { return c.events.Since(since) }
