// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// syncPatience bounds the first reading.
const syncPatience = 30 * time.Second

// listing is a kind of objects of the cluster; L is a list of them.
type listing[L runtime.Object] interface {
	List(ctx context.Context, o meta.ListOptions) (L, error)
	Watch(ctx context.Context, o meta.ListOptions) (apiwatch.Interface, error)
}

// watched are the cluster's objects of a kind, kept up by a watch. Where that ends and cannot begin again, they stay as they were: its log says so, and unread.
type watched struct {
	toolscache.SharedIndexInformer
	kind string
	log  *slog.Logger
	// trouble is why they could not be read when that was tried the last time; nil: they are being watched.
	trouble atomic.Pointer[error]
	// silent is when the API server did not answer for them the last time; nil: it always did.
	silent atomic.Pointer[time.Time]
	// logged, the watch's alone: the log says that they cannot be read.
	logged bool
}

// informer reads the objects of a kind that two selectors choose, and watches them.
func informer[L runtime.Object](client Client, log *slog.Logger, name string, kind listing[L], example runtime.Object, label, field string) *watched {
	chosen := func(o meta.ListOptions) meta.ListOptions {
		o.LabelSelector, o.FieldSelector = label, field
		return o
	}
	w := &watched{kind: name, log: log}
	w.SharedIndexInformer = toolscache.NewSharedIndexInformer(toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o meta.ListOptions) (runtime.Object, error) {
			return answered(ctx, w, func() (L, error) { return kind.List(ctx, chosen(o)) })
		},
		WatchFuncWithContext: func(ctx context.Context, o meta.ListOptions) (apiwatch.Interface, error) {
			events, err := answered(ctx, w, func() (apiwatch.Interface, error) { return kind.Watch(ctx, chosen(o)) })
			if err == nil {
				w.begun()
			}
			return events, err
		},
	}, client), example, 0, toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc})
	if err := w.SetWatchErrorHandlerWithContext(w.dropped); err != nil {
		panic(err) // it has not begun
	}
	return w
}

// askAgain is the longest pause before an API server that did not answer is asked for objects again. client-go alone pauses for up to a minute by and by: a conch that
// leads after an outage would not know the Pods for as long.
const askAgain = 2 * time.Second

// answered asks until the API server has answered, whatever it says, or ctx ends.
func answered[T any](ctx context.Context, w *watched, ask func() (T, error)) (T, error) {
	begin := time.Now()
	for pause := askAgain / 8; ; pause = min(2*pause, askAgain) {
		answer, err := ask()
		if err != nil {
			w.trouble.Store(&err)
		}
		if !unanswered(err) {
			return answer, err
		}
		now := time.Now()
		w.silent.Store(&now)
		if now.Sub(begin) >= syncPatience {
			w.stale(err)
		}
		select {
		case <-ctx.Done():
			return answer, err
		case <-time.After(pause):
		}
	}
}

// begun takes in that the watch has begun.
func (w *watched) begun() {
	w.trouble.Store(nil)
	if w.logged {
		w.log.Info("objects of the cluster can be read again", "kind", w.kind)
		w.logged = false
	}
}

// dropped takes in that the watch has ended, or cannot begin: client-go tries it again.
func (w *watched) dropped(ctx context.Context, _ *toolscache.Reflector, err error) {
	expired := apierrors.IsResourceExpired(err) || apierrors.IsGone(err) // all are read anew at once
	if ctx.Err() == nil && !expired {
		w.stale(err)
	}
}

// stale logs, once, why the objects cannot be read.
func (w *watched) stale(err error) {
	if w.logged {
		return
	}
	w.logged = true
	w.log.Warn("objects of the cluster cannot be read, and are taken to be as they were; it is tried again", "kind", w.kind, "error", err)
}

// unread says why the objects cannot be read at the moment; empty where they can.
func (w *watched) unread() string {
	if err := w.trouble.Load(); err != nil {
		return fmt.Sprintf("the cluster's %s cannot be read: %v", w.kind, *err)
	}
	return ""
}

// silentAt is when the API server did not answer for them the last time.
func (w *watched) silentAt() time.Time {
	if at := w.silent.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// synced waits until they are known.
func (w *watched) synced(ctx context.Context) error {
	if toolscache.WaitFor(ctx, "", w.HasSyncedChecker()) {
		return nil
	}
	text := fmt.Sprintf("the cluster's %s could not be read within %s", w.kind, syncPatience)
	if err := w.trouble.Load(); err != nil {
		return fmt.Errorf("%s: %w", text, *err)
	}
	return errors.New(text)
}
