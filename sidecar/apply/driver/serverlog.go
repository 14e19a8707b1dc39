// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

const (
	// maxLogBytes is when a log is moved aside for a new one.
	maxLogBytes = 16 << 20
	// keptErrors is how many of the last error lines are remembered.
	keptErrors = 32
	// maxLine is the longest piece of a line that is remembered.
	maxLine = 1 << 10
)

// serverLog is the log file of a partition's server, over all its lives, and
// the memory of its last errors.
type serverLog struct {
	mu     sync.Mutex
	path   string
	file   *os.File
	size   int64
	last   []string // error lines of this life
	count  int      // error lines of this life, forgotten ones included
	marked map[string]int
}

func openLog(path string) (*serverLog, error) {
	l := &serverLog{path: path, marked: map[string]int{}}
	return l, l.open()
}

func (l *serverLog) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("log of the server: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("log of the server: %w", err), f.Close())
	}
	l.file, l.size = f, info.Size()
	return nil
}

// Close closes the file; what is logged later is dropped.
func (l *serverLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	f := l.file
	l.file = nil
	return f.Close()
}

// begin forgets the errors of the last life.
func (l *serverLog) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last, l.count = nil, 0
	clear(l.marked)
}

// copy writes everything that r says to the file, line by line.
func (l *serverLog) copy(r io.Reader, each func(string)) {
	lines := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			l.line(line)
			each(string(line))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (l *serverLog) line(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isError(line) {
		text := strings.TrimSpace(string(line[:min(len(line), maxLine)]))
		l.last = append(l.last, message(text))
		l.last = l.last[max(len(l.last)-keptErrors, 0):]
		l.count++
	}
	if l.file == nil {
		return
	}
	if l.size > maxLogBytes {
		l.rotate()
	}
	// A full disk must not stop the server, whose pipe this empties.
	n, _ := l.file.Write(line)
	l.size += int64(n)
}

// rotate keeps one older file. Where it fails, logging goes on in the old one.
func (l *serverLog) rotate() {
	old := l.file
	if os.Rename(l.path, l.path+".1") != nil || l.open() != nil {
		l.file, l.size = old, 0
		return
	}
	_ = old.Close() // written through, and renamed by now
}

// isError reports a line of severity error in Triton's format, "E1121 ...".
func isError(line []byte) bool {
	return len(line) > 5 && (line[0] == 'E' || line[0] == 'F') && line[1] >= '0' && line[1] <= '9' && line[4] >= '0' && line[4] <= '9'
}

// message cuts "E1121 03:17:42.123456 7 file.cc:12] text" down to "text".
func message(line string) string {
	_, text, found := strings.Cut(line, "] ")
	if !found {
		return line
	}
	return strings.Trim(text, `"`)
}

// errors are the last error lines of this life.
func (l *serverLog) errors() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.last[max(len(l.last)-3, 0):], "; ")
}

// mark begins an interval; since is what was logged in it that names the mark.
func (l *serverLog) mark(model string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marked[model] = l.count
}

func (l *serverLog) since(model string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := len(l.last) - (l.count - l.marked[model])
	var found []string
	for _, line := range l.last[min(max(from, 0), len(l.last)):] {
		if strings.Contains(line, model) {
			found = append(found, line)
		}
	}
	return strings.Join(found, "; ")
}
