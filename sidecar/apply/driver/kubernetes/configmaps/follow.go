// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package configmaps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// followPace is how long after a change nothing more is read: an owner writes several times in a row.
const followPace = time.Second

// Follow reads what the release has kept, and goes on reading it whenever the conch that leads has written, until TakeOver. Meanwhile nothing can be written.
func Follow(ctx context.Context, o Options) (*Store, error) {
	s := &Store{
		o: o, objects: o.Client.CoreV1().ConfigMaps(o.Namespace), buckets: map[string]map[string][]byte{}, changed: map[string]bool{},
		due: make(chan struct{}, 1), written: map[string]packed{}, fenced: ErrFollowing,
	}
	s.life, s.stop = context.WithCancel(context.Background())
	s.following, s.lead = context.WithCancel(s.life)
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	head, err := s.get(within)
	if err == nil {
		err = s.look(within, head)
	}
	if err != nil {
		s.stop()
		return nil, s.about(err)
	}
	s.running.Go(func() {
		<-s.following.Done()
		s.flush(s.life)
	})
	heads := make(chan *core.ConfigMap, 1)
	watch, err := o.WatchConfigMap(ctx, o.Logger, s.headName(), func(head *core.ConfigMap) {
		select {
		case <-heads: // it is not the latest any more
		default:
		}
		heads <- head
	})
	if err != nil {
		o.Logger.Warn("the state that the conch which leads writes is read only when this one leads", "error", err)
		return s, nil
	}
	s.running.Go(func() { watch(s.following) })
	s.running.Go(func() { s.follow(heads) })
	return s, nil
}

// follow reads what was written, until this conch leads.
func (s *Store) follow(heads <-chan *core.ConfigMap) {
	for {
		select {
		case <-s.following.Done():
			return
		case head := <-heads:
			within, cancel := context.WithTimeout(s.following, patience)
			if err := s.look(within, head); err != nil && s.following.Err() == nil {
				s.o.Logger.Debug("the release's state could not be read; it is read again when it changes, or when this conch leads", "error", err)
			}
			cancel()
		}
		select {
		case <-s.following.Done():
			return
		case <-time.After(followPace):
		}
	}
}

// get is the head as it is now; an empty one where nothing was ever written.
func (s *Store) get(ctx context.Context) (*core.ConfigMap, error) {
	head, err := s.objects.Get(ctx, s.headName(), meta.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &core.ConfigMap{}, nil
	}
	return head, err
}

// look reads what is not known of a head, or of a later one: its parts go when another takes its place.
func (s *Store) look(ctx context.Context, head *core.ConfigMap) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	for {
		if err := s.following.Err(); err != nil {
			return err // it is this conch's own by now
		}
		err := s.take(ctx, head)
		if !apierrors.IsNotFound(err) {
			return err
		}
		now, again := s.get(ctx)
		if again != nil || now.ResourceVersion == head.ResourceVersion {
			return errors.Join(err, again)
		}
		head = now
	}
}

// take has the buckets in memory be those of a head; s.writing is held. What is the same as before is not read.
func (s *Store) take(ctx context.Context, head *core.ConfigMap) error {
	now, err := unpackHead(head)
	if err != nil {
		return err
	}
	read := map[string]map[string][]byte{}
	for name, p := range now {
		if before, is := s.written[name]; is && before.same(p) {
			continue
		}
		text, err := s.read(ctx, p)
		if err == nil {
			read[name], err = decode(text)
		}
		if err != nil {
			return fmt.Errorf("%s: %w; delete the ConfigMap to start over", name, err)
		}
	}
	s.written = now
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.buckets, func(name string, _ map[string][]byte) bool { _, is := now[name]; return !is })
	maps.Copy(s.buckets, read)
	return nil
}

// same reports that two hold the same bucket: parts are never written anew.
func (p packed) same(q packed) bool {
	return bytes.Equal(p.text, q.text) && slices.Equal(p.parts, q.parts)
}

// read puts the parts of a bucket together.
func (s *Store) read(ctx context.Context, p packed) ([]byte, error) {
	if len(p.parts) == 0 {
		return p.text, nil
	}
	var text []byte
	for _, name := range p.parts {
		part, err := s.objects.Get(ctx, name, meta.GetOptions{})
		if err != nil {
			return nil, err
		}
		text = append(text, part.BinaryData[partKey]...)
	}
	return text, nil
}
