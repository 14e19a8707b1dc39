// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shim

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
	// keptErrors is how many of the last error lines are remembered.
	keptErrors = 3
	// maxLine is the longest piece of a line that is remembered.
	maxLine = 1 << 10
)

// logFile is the log of one server, and the memory of its last errors.
type logFile struct {
	path  string
	bytes int64
	files int

	mu   sync.Mutex
	file *os.File
	size int64
	last []string
}

func openLog(path string, bytes int64, files int) (*logFile, error) {
	l := &logFile{path: path, bytes: bytes, files: files}
	return l, l.open()
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
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

// copy writes everything that r says to the file until r ends.
func (l *logFile) copy(r io.Reader) {
	lines := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			l.write(line)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (l *logFile) write(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if IsError(line) {
		l.last = append(l.last, Message(strings.TrimSpace(string(line[:min(len(line), maxLine)]))))
		l.last = l.last[max(len(l.last)-keptErrors, 0):]
	}
	if l.bytes > 0 && l.size >= l.bytes {
		l.rotate()
	}
	// A full disk must not stop the server, whose pipe this empties: what cannot be
	// written is lost, the next line is tried again.
	n, _ := l.file.Write(line)
	l.size += int64(n)
}

// rotate moves the file aside. Where that fails, logging goes on in it and is
// tried again after as many bytes.
func (l *logFile) rotate() {
	for i := l.files - 2; i >= 1; i-- {
		_ = os.Rename(fmt.Sprintf("%s.%d", l.path, i), fmt.Sprintf("%s.%d", l.path, i+1)) // not there at first
	}
	old := l.file
	if l.files > 1 && os.Rename(l.path, l.path+".1") != nil {
		l.size = 0
		return
	}
	if l.files <= 1 {
		_ = os.Remove(l.path)
	}
	if l.open() != nil {
		l.file, l.size = old, 0
		return
	}
	_ = old.Close() // written through, and renamed by now
}

func (l *logFile) errors() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.last, "; ")
}

// IsError reports a line of severity error or fatal in Triton's format, such as
// "E1121 03:17:42.123456 7 file.cc:12] text".
func IsError[T string | []byte](line T) bool {
	return len(line) > 5 && (line[0] == 'E' || line[0] == 'F') && line[1] >= '0' && line[1] <= '9' && line[4] >= '0' && line[4] <= '9'
}

// Message cuts "E1121 03:17:42.123456 7 file.cc:12] text" down to "text".
func Message(line string) string {
	_, text, found := strings.Cut(line, "] ")
	if !found {
		return line
	}
	return strings.Trim(text, `"`)
}
