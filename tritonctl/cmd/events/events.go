// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package events is `tritonctl events`.
package events

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// filter says which events are shown.
type filter struct {
	since                      string
	model, partition, gpu      string
	kind                       []string
	after                      uint64
	from                       time.Time
	following, followingByName bool
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	var want filter
	c := &cobra.Command{
		Use:   "events",
		Short: "Show what happened: who, when, why",
		Long: `events shows what conch and its operators did, oldest first. -o json has the fields
of each event, such as what a plan changed and how long each of its steps took.`,
		Example: `  tritonctl events --since 10m --model bert --watch
  tritonctl events --kind plan_applied,plan_held
  tritonctl events --since 40 -o json | jq '.[] | select(.kind == "plan_applied").fields.diff'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if err := want.read(f.Now()); err != nil {
				return err
			}
			if want.following || want.followingByName {
				return want.follow(c.Context(), f)
			}
			return factory.Show(c.Context(), f, func(conch *client.Client, ctx context.Context) ([]api.Event, error) {
				all, err := conch.Events(ctx, want.after, want.kind...)
				return slices.DeleteFunc(all, func(e api.Event) bool { return !want.shows(e) }), err
			}, draw)
		},
	}
	c.Flags().BoolVarP(&want.following, "watch", "w", false, "go on as events happen, until interrupted or --timeout")
	c.Flags().BoolVarP(&want.followingByName, "follow", "f", false, "the same as --watch")
	c.Flags().StringVar(&want.since, "since", "", "only events of this last time, such as 10m, or after this id")
	c.Flags().StringVar(&want.model, "model", "", "only events about this model")
	c.Flags().StringVar(&want.partition, "partition", "", "only events about this partition")
	c.Flags().StringVar(&want.gpu, "gpu", "", "only events about this GPU")
	c.Flags().StringSliceVar(&want.kind, "kind", nil, "only events of these kinds, such as plan_applied")
	_ = c.RegisterFlagCompletionFunc("model", factory.ModelNames(f))
	_ = c.RegisterFlagCompletionFunc("partition", factory.PartitionNames(f))
	_ = c.RegisterFlagCompletionFunc("gpu", factory.GPUNames(f))
	return c
}

// read understands --since.
func (w *filter) read(now time.Time) error {
	if w.since == "" {
		return nil
	}
	if id, err := strconv.ParseUint(w.since, 10, 64); err == nil {
		w.after = id
		return nil
	}
	d, err := time.ParseDuration(w.since)
	if err != nil || d <= 0 {
		return fmt.Errorf("%w: --since %q is neither a time like 10m nor the id of an event", factory.ErrUsage, w.since)
	}
	w.from = now.Add(-d)
	return nil
}

// shows reports whether an event is one of those asked for.
func (w *filter) shows(e api.Event) bool {
	if e.Time.Before(w.from) || len(w.kind) > 0 && !slices.Contains(w.kind, string(e.Kind)) {
		return false
	}
	for key, name := range map[string]string{"model": w.model, "partition": w.partition, "gpu": w.gpu} {
		if name != "" && !about(e, key, name) {
			return false
		}
	}
	return true
}

// about reports whether an event is about something: by its field, or because the
// plan that it tells of changes it.
func about(e api.Event, key, name string) bool {
	return e.Fields[key] == name || slices.ContainsFunc(words(e.Fields["diff"]), func(word string) bool { return word == name })
}

// words of a plan's diff.
func words(diff string) []string {
	return strings.FieldsFunc(diff, func(r rune) bool { return strings.ContainsRune(" \n\t,:;()", r) })
}

// follow shows events until ctx ends.
func (w *filter) follow(ctx context.Context, f *factory.Factory) error {
	conch, err := f.Client()
	if err != nil {
		return err
	}
	if len(w.kind) > 0 {
		if _, err := conch.Events(ctx, w.after, w.kind...); err != nil { // an unknown kind would be waited for without end
			return err
		}
	}
	return f.FollowEvents(ctx, conch, w.after, func(e api.Event) error {
		if !w.shows(e) {
			return nil
		}
		return f.Print(e, func(t *output.Table) { row(t, e) })
	})
}

func draw(t *output.Table, events []api.Event) {
	t.Row("ID", "TIME", "KIND", "AUTHOR", "TOOK", "MESSAGE", "REASON")
	for _, e := range events {
		row(t, e)
	}
}

func row(t *output.Table, e api.Event) {
	took := ""
	if e.Seconds > 0 {
		took = fmt.Sprintf("%.2fs", e.Seconds)
	}
	t.Row(e.ID, e.Time.Format(time.RFC3339), e.Kind, e.Author, took, e.Message, e.Reason)
}
