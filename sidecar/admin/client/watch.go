// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Change is an event of the stream of state.
type Change struct {
	Topic api.Topic
	// ID is what Watch takes as last, to go on after this event.
	ID string
	api.Update
}

// EndedError is a stream that conch has ended.
type EndedError struct{ api.End }

// Error implements error.
func (e *EndedError) Error() string { return "conch ended the stream: " + e.Message }

// ErrSilent means that a stream said nothing for far longer than its signs of life are apart: the connection is gone.
var ErrSilent = errors.New("the stream has been silent for too long")

const (
	// silence is after how long a stream is taken for dead; an event comes every 15 s.
	silence = 45 * time.Second
	// longestEvent bounds an event: the largest is a plan.
	longestEvent = 64 << 20
)

// Watch calls yield with the state of some topics, or of all if none is named, and then with its changes. Last is the id of the last event that the
// caller has, or empty: where the changes since are still kept, they come in place of the whole state. Watch returns nil when ctx ends, the error of yield
// when that fails, an *EndedError when conch ends the stream, and another error when the connection is lost. It does not connect again.
func (c *Client) Watch(ctx context.Context, topics []api.Topic, last string, yield func(Change) error) error {
	query := url.Values{}
	for _, t := range topics {
		query.Add("topic", string(t))
	}
	alive, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	request, err := http.NewRequestWithContext(alive, http.MethodGet, c.base+"/v1/watch?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "text/event-stream")
	if last != "" {
		request.Header.Set("Last-Event-ID", last)
	}
	quiet := time.AfterFunc(silence, func() { cancel(ErrSilent) })
	defer quiet.Stop()
	response, err := c.do(request)
	if err == nil {
		defer response.Body.Close()
		err = read(response.Body, func() { quiet.Reset(silence) }, yield)
	}
	switch {
	case ctx.Err() != nil && !errors.As(err, new(yielded)):
		return nil
	case errors.Is(context.Cause(alive), ErrSilent):
		return fmt.Errorf("%s: %w", c.address, ErrSilent)
	}
	var own yielded
	var ended *EndedError
	var refused *api.Error
	switch {
	case errors.As(err, &own):
		return own.error
	case err == nil:
		return fmt.Errorf("the stream of %s ended: %w", c.address, io.ErrUnexpectedEOF)
	case errors.As(err, &ended), errors.As(err, &refused), errors.Is(err, ErrUnreachable):
		return err
	}
	return fmt.Errorf("the stream of %s ended: %w", c.address, err)
}

// yielded is an error of the caller's.
type yielded struct{ error }

// read reads server-sent events until the stream ends.
func read(stream io.Reader, heard func(), yield func(Change) error) error {
	lines := bufio.NewScanner(stream)
	lines.Buffer(make([]byte, 0, 64<<10), longestEvent)
	var event, id string
	var data []byte
	for lines.Scan() {
		heard()
		line := lines.Bytes()
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch {
		case len(line) == 0:
			if data == nil {
				continue
			}
			if err := dispatch(api.Topic(event), id, data, yield); err != nil {
				return err
			}
			event, data = "", nil
		case string(name) == "event":
			event = string(value)
		case string(name) == "id":
			id = string(value)
		case string(name) == "data":
			data = append(data, value...)
		}
	}
	return lines.Err()
}

func dispatch(topic api.Topic, id string, data []byte, yield func(Change) error) error {
	if topic == api.TopicEnd {
		var end api.End
		if err := json.Unmarshal(data, &end); err != nil {
			return fmt.Errorf("its last event: %w", err)
		}
		return &EndedError{end}
	}
	change := Change{Topic: topic, ID: id}
	if err := json.Unmarshal(data, &change.Update); err != nil {
		return fmt.Errorf("event of the topic %s: %w", topic, err)
	}
	if err := yield(change); err != nil {
		return yielded{err}
	}
	return nil
}
