// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package configmaps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
)

const (
	// delay is how long what Later was given may wait, to be written with what comes after it.
	delay = 5 * time.Second
	// patience bounds one write.
	patience = 10 * time.Second
	// annotationLeader of the head is who may write.
	annotationLeader = "conch.io/leader"
)

// ErrFollowing says that the store is not this conch's yet.
var ErrFollowing = errors.New("this conch follows the release's state, and writes nothing")

// ErrFenced says that another conch has taken the store over since, or that somebody has deleted it: this conch writes nothing any more, so that no plan of it is kept.
var ErrFenced = errors.New("the release's state is not this conch's any more, and nothing was written")

// Options of Follow. All but Owner and Lost have to be given.
type Options struct {
	kubernetes.Connection
	Release string
	// Identity is this conch's alone, over restarts.
	Identity string
	// Owner is a ConfigMap with which the state is deleted; nil: it stays.
	Owner *meta.OwnerReference
	// Fence returns an error where this conch does not lead at the moment: then nothing is asked of the API server.
	Fence func() error
	// Lost is called with ErrFenced when this conch finds that the store is not its own any more. It must not wait.
	Lost   func(error)
	Logger *slog.Logger
}

// Store implements store.Store.
type Store struct {
	o       Options
	objects corev1.ConfigMapInterface

	mu      sync.Mutex
	buckets map[string]map[string][]byte
	// changed are buckets with changes of Later that are not written yet.
	changed map[string]bool
	// due has something in it while something is changed.
	due chan struct{}

	// writing is held for a write, and for what is read of another conch's; head, written and fenced are its holder's.
	writing sync.Mutex
	// head is as this conch wrote it last.
	head *core.ConfigMap
	// written are the buckets as the head has them, and as they are in memory.
	written map[string]packed
	// fenced is why this conch may not write; nil while it may.
	fenced error

	// following ends with TakeOver, life with Close.
	following, life context.Context
	lead, stop      context.CancelFunc
	running         sync.WaitGroup
}

// TakeOver makes the state this conch's: nobody who had it before can write to it any more. What was read of it by following is not read again.
func (s *Store) TakeOver(ctx context.Context) error {
	s.lead()
	s.writing.Lock()
	defer s.writing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := s.takeOver(ctx); err != nil {
		return s.about(err)
	}
	s.fenced = nil
	return nil
}

func (s *Store) about(err error) error {
	return fmt.Errorf("state of release %s in ConfigMap %s: %w", s.o.Release, s.headName(), err)
}

// takeOver writes this conch's name into the head, and reads what it has not of it.
func (s *Store) takeOver(ctx context.Context) error {
	for {
		if err := s.o.Fence(); err != nil {
			return err
		}
		head, err := s.objects.Get(ctx, s.headName(), meta.GetOptions{})
		if apierrors.IsNotFound(err) {
			head, err = s.objects.Create(ctx, s.object(s.headName(), map[string]string{annotationLeader: s.o.Identity}, nil), meta.CreateOptions{})
		} else if err == nil {
			head = head.DeepCopy()
			if head.Annotations == nil {
				head.Annotations = map[string]string{}
			}
			head.Annotations[annotationLeader] = s.o.Identity
			head, err = s.objects.Update(ctx, head, meta.UpdateOptions{})
		}
		if (apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err)) && ctx.Err() == nil {
			continue // the leader before has just written
		}
		if err != nil {
			return err
		}
		s.head = head
		break
	}
	if err := s.take(ctx, s.head); err != nil {
		return err
	}
	s.sweep(ctx)
	return nil
}

// sweep deletes parts that the head does not name: of writes that were cut off.
func (s *Store) sweep(ctx context.Context) {
	named := map[string]bool{}
	for _, p := range s.written {
		for _, name := range p.parts {
			named[name] = true
		}
	}
	all, err := s.objects.List(ctx, meta.ListOptions{LabelSelector: labelPart + "=" + partOfState + "," + kubernetes.LabelRelease + "=" + s.o.Release})
	if err != nil {
		s.o.Logger.Debug("parts of the state that nothing names could not be looked for", "error", err)
		return
	}
	for _, part := range all.Items {
		if part.Name != s.headName() && !named[part.Name] {
			s.remove(ctx, part.Name)
		}
	}
}

// remove deletes a part that is not named any more. One that stays is swept by the next conch.
func (s *Store) remove(ctx context.Context, name string) {
	if err := s.objects.Delete(ctx, name, meta.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		s.o.Logger.Debug("a part of an earlier state could not be deleted", "configmap", name, "error", err)
	}
}

// Get implements store.Store.
func (s *Store) Get(bucket, key string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.buckets[bucket][key]), nil
}

// Keys implements store.Store.
func (s *Store) Keys(bucket string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.buckets[bucket])), nil
}

// Later implements store.Store: what it is given is written with the next Write, or after a delay.
func (s *Store) Later(changes ...store.Change) error {
	if s.following.Err() == nil {
		return ErrFollowing
	}
	s.mu.Lock()
	changed := false
	for _, c := range changes {
		if bytes.Equal(s.buckets[c.Bucket][c.Key], c.Value) {
			continue // what was learnt is given again each minute, and is the same while nobody asks
		}
		s.buckets[c.Bucket] = with(s.buckets[c.Bucket], c)
		s.changed[c.Bucket], changed = true, true
	}
	s.mu.Unlock()
	if !changed {
		return nil
	}
	select {
	case s.due <- struct{}{}:
	default: // it is known that something is due
	}
	return nil
}

// with is a bucket with a change. The bucket itself is changed: readers copy what they are given.
func with(bucket map[string][]byte, c store.Change) map[string][]byte {
	if bucket == nil {
		bucket = map[string][]byte{}
	}
	if len(c.Value) == 0 {
		delete(bucket, c.Key)
	} else {
		bucket[c.Key] = bytes.Clone(c.Value)
	}
	return bucket
}

// Write implements store.Store. What Later was given before is written with it, as far as it can be kept.
func (s *Store) Write(changes ...store.Change) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	next, ordered := map[string]map[string][]byte{}, map[string]bool{}
	for name := range s.changed {
		next[name] = maps.Clone(s.buckets[name])
	}
	for _, c := range changes {
		if next[c.Bucket] == nil {
			next[c.Bucket] = maps.Clone(s.buckets[c.Bucket])
		}
		next[c.Bucket] = with(next[c.Bucket], c)
		ordered[c.Bucket] = true
	}
	late := s.changed
	s.changed = map[string]bool{}
	s.mu.Unlock()
	if len(next) == 0 {
		return nil
	}
	texts, left, err := encoded(next, ordered)
	if err == nil && len(texts) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		err = s.write(ctx, texts)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		for name := range late {
			s.changed[name] = true
		}
		return fmt.Errorf("ConfigMap %s: %w", s.headName(), err)
	}
	for _, c := range changes { // and not next: Later may have been called meanwhile
		s.buckets[c.Bucket] = with(s.buckets[c.Bucket], c)
	}
	if left != nil && len(changes) > 0 {
		s.o.Logger.Warn("what was learnt, or the history, could not be written to the cluster with an order, which was", "error", left)
		return nil
	}
	return left
}

// encoded are buckets as they are written. One that cannot be is left out, and left says so, unless it was ordered: what may be lost must not hold up what may not.
func encoded(buckets map[string]map[string][]byte, ordered map[string]bool) (texts map[string][]byte, left, err error) {
	texts = make(map[string][]byte, len(buckets))
	for name, bucket := range buckets {
		text, err := encode(bucket)
		if err == nil && len(text) > maxBucket {
			err = fmt.Errorf("%d bytes are more than the %d that a cluster keeps of it", len(text), maxBucket)
		}
		switch {
		case err == nil:
			texts[name] = text
		case ordered[name]:
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		default:
			left = errors.Join(left, fmt.Errorf("%s: %w", name, err))
		}
	}
	return texts, left, nil
}

// write replaces buckets; s.writing is held.
func (s *Store) write(ctx context.Context, next map[string][]byte) error {
	if s.fenced != nil {
		return s.fenced
	}
	if err := s.o.Fence(); err != nil {
		return err
	}
	written := maps.Clone(s.written)
	var made []string
	undo := func() { // also when it was the time of the write that ended
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		for _, name := range made {
			s.remove(within, name)
		}
	}
	for name, text := range next {
		p := packed{text: text}
		if len(text) > inHead {
			p.text = nil
			for part := range slices.Chunk(text, inPart) {
				object := s.object(s.partName(), nil, map[string][]byte{partKey: part})
				made = append(made, object.Name)
				if _, err := s.objects.Create(ctx, object, meta.CreateOptions{}); err != nil {
					undo()
					return err
				}
				p.parts = append(p.parts, object.Name)
			}
		}
		written[name] = p
	}
	if err := s.replaceHead(ctx, written); err != nil {
		if errors.Is(err, ErrFenced) { // what is in doubt may be named by the head; the next to open sweeps
			undo()
		}
		return err
	}
	for name := range next {
		for _, part := range s.written[name].parts {
			s.remove(ctx, part)
		}
	}
	s.written = written
	return nil
}

// replaceHead writes the head where nobody else has since it was read.
func (s *Store) replaceHead(ctx context.Context, written map[string]packed) error {
	for {
		head := s.head.DeepCopy()
		packHead(head, written)
		now, err := s.objects.Update(ctx, head, meta.UpdateOptions{})
		switch {
		case err == nil:
			s.head = now
			return nil
		case apierrors.IsNotFound(err):
			return s.lose("the ConfigMap was deleted; a conch that starts makes it anew")
		case !apierrors.IsConflict(err):
			return err
		}
		// Another conch, or a person with kubectl, or an answer of an earlier write that was lost.
		now, err = s.objects.Get(ctx, s.headName(), meta.GetOptions{})
		if err != nil {
			return err
		}
		if now.Annotations[annotationLeader] != s.o.Identity || now.UID != s.head.UID {
			return s.lose(fmt.Sprintf("conch %s has taken it over", now.Annotations[annotationLeader]))
		}
		s.head = now
	}
}

// lose has nothing be written any more; s.writing is held.
func (s *Store) lose(reason string) error {
	s.fenced = fmt.Errorf("%w: %s", ErrFenced, reason)
	if s.o.Lost != nil {
		s.o.Lost(s.fenced)
	}
	return s.fenced
}

// flush writes what Later was given, until ctx ends.
func (s *Store) flush(ctx context.Context) {
	level := slog.LevelWarn // the first time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.due:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
		switch err := s.Write(); {
		case errors.Is(err, ErrFenced):
			return
		case err == nil:
			level = slog.LevelWarn
		default:
			s.o.Logger.Log(ctx, level, "the history of the release could not be written to the cluster; it is tried again", "error", err)
			level = slog.LevelDebug
			select {
			case s.due <- struct{}{}:
			default:
			}
		}
	}
}

// Close writes what is not written yet. Whoever takes the store over next need not wait for it.
func (s *Store) Close() error {
	s.stop()
	s.running.Wait()
	return s.Write()
}
