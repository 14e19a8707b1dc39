// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"strings"
	"time"

	"charm.land/bubbles/v2/viewport"
	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Changed brings the state; Lost says that no more comes until the next Changed, and why. Tick comes once a second: samples are taken, and
// ages go on.
type (
	Changed struct{ State *State }
	Lost    struct{ Err error }
	Tick    struct{}
)

// Screen is what a person sees and does. It is a tea.Model: messages in, text out.
type Screen struct {
	now           func() time.Time
	width, height int
	styles        styles

	state *State
	past  history
	// lost is why there is no connection, lostAt since when; nil while there is one.
	lost   error
	lostAt time.Time

	tab    tab
	tables [tabs]table
	filter string
	typing bool
	help   bool
	// open is the key of the row whose detail is shown; empty for the list.
	open string
	port viewport.Model
}

// NewScreen begins without a state.
func NewScreen(now func() time.Time) *Screen {
	s := &Screen{now: now, width: 80, height: 24, styles: newStyles(true), past: history{}, tables: lists(), port: viewport.New()}
	return s
}

// Init implements tea.Model.
func (s *Screen) Init() tea.Cmd { return tea.RequestBackgroundColor }

// Update implements tea.Model.
func (s *Screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = msg.Width, msg.Height
	case tea.BackgroundColorMsg:
		s.styles = newStyles(msg.IsDark())
	case Changed:
		if s.state == nil {
			s.past.add(msg.State)
		}
		s.state, s.lost = msg.State, nil
	case Lost:
		if s.lost == nil {
			s.lostAt = s.now()
		}
		s.lost = msg.Err
	case Tick:
		if s.state != nil && s.lost == nil {
			s.past.add(s.state)
		}
	case tea.KeyPressMsg:
		cmd = s.press(msg)
	}
	s.refresh()
	return s, cmd
}

// press does what a key asks for.
func (s *Screen) press(key tea.KeyPressMsg) tea.Cmd {
	name := key.String()
	switch {
	case name == "ctrl+c":
		return tea.Quit
	case s.typing:
		switch name {
		case "enter":
			s.typing = false
		case "esc":
			s.typing, s.filter = false, ""
		case "backspace":
			if letters := []rune(s.filter); len(letters) > 0 {
				s.filter = string(letters[:len(letters)-1])
			}
		default:
			s.filter += key.Text
		}
		return nil
	case s.help:
		s.help = false
		return nil
	case s.open != "":
		switch name {
		case "esc", "q", "enter", "left", "backspace":
			s.open = ""
			return nil
		}
		var cmd tea.Cmd
		s.port, cmd = s.port.Update(key)
		return cmd
	}
	t := &s.tables[s.tab]
	page := max(1, s.height-5)
	switch name {
	case "q":
		return tea.Quit
	case "?", "h":
		s.help = true
	case "tab", "right", "l":
		s.tab = (s.tab + 1) % tabs
	case "shift+tab", "left":
		s.tab = (s.tab + tabs - 1) % tabs
	case "1", "2", "3", "4":
		s.tab = tab(name[0] - '1')
	case "down", "j":
		t.move(1)
	case "up", "k":
		t.move(-1)
	case "pgdown", "space":
		t.move(page)
	case "pgup":
		t.move(-page)
	case "home", "g":
		t.move(-len(t.rows))
	case "end", "G":
		t.move(len(t.rows))
	case "s", ">":
		t.next(1)
	case "<":
		t.next(-1)
	case "r":
		t.down = !t.down
	case "/":
		s.typing = true
	case "esc":
		s.filter = ""
	case "enter":
		if t.index() >= 0 {
			s.open = t.selected
			s.port.GotoTop()
		}
	}
	return nil
}

// refresh draws up the rows of the present tab, and the detail that is open.
func (s *Screen) refresh() {
	if s.state == nil {
		return
	}
	s.tables[s.tab].set(s.tab.rows(s.state, s.past), s.filter)
	if s.open == "" {
		return
	}
	_, lines, ok := detail(s.state, s.tab, s.open)
	if !ok {
		lines = []string{"It is not there any more."}
	}
	s.port.SetWidth(s.width)
	s.port.SetHeight(max(1, s.height-4))
	s.port.SetContent(wrap(lines, s.width))
}

// wrap breaks lines at words, with the names' column left free.
func wrap(lines []string, width int) string {
	const names = 15
	if width <= 2*names {
		return strings.Join(lines, "\n")
	}
	var out []string
	for _, line := range lines {
		name, value := "", line
		if head := ansi.Truncate(line, names, ""); lipgloss.Width(line) > width && strings.HasSuffix(head, " ") {
			name, value = head, line[len(head):]
		}
		for i, part := range strings.Split(ansi.Wrap(value, width-lipgloss.Width(name), ""), "\n") {
			if i > 0 {
				name = strings.Repeat(" ", lipgloss.Width(name))
			}
			out = append(out, name+part)
		}
	}
	return strings.Join(out, "\n")
}

// View implements tea.Model.
func (s *Screen) View() tea.View {
	v := tea.NewView(s.content())
	v.AltScreen = true
	v.WindowTitle = "conch"
	return v
}

func (s *Screen) content() string {
	room := max(1, s.height-4)
	var body string
	switch {
	case s.help:
		body = helpText
	case s.state == nil && s.lost == nil:
		body = "Connecting …"
	case s.state == nil:
		body = fit("No conch answers: "+s.lost.Error(), s.width, false) + "\nTrying again …"
	case s.open != "":
		body = s.port.View()
	default:
		body = s.tables[s.tab].view(s.styles, s.width, room)
		if len(s.tables[s.tab].rows) == 0 {
			body += "\n" + s.styles.tones[soft].Render(s.nothing())
		}
	}
	lines := strings.Split(body, "\n")
	for len(lines) < room {
		lines = append(lines, "")
	}
	return strings.Join([]string{s.top(), s.bar(), "", strings.Join(lines[:room], "\n"), s.bottom()}, "\n")
}

// nothing says why a list is empty.
func (s *Screen) nothing() string {
	switch {
	case s.filter != "":
		return "Nothing matches " + s.filter + "; Esc shows all."
	case s.tab == waiting:
		return "No request waits, and every model has a place."
	}
	return "There are none."
}

// top says which conch it is, how it is, and whether it can be heard.
func (s *Screen) top() string {
	left, right, summary := s.styles.title.Render("conch"), s.styles.tones[good].Render("live"), ""
	if s.state != nil {
		v := s.state.Version
		busyGPUs, rate, queued := 0.0, 0.0, 0
		for _, g := range s.state.GPUs {
			busyGPUs += busy(g)
		}
		for _, m := range s.state.Models {
			rate += m.Rate
			queued += m.Queued
		}
		if v.Mode != "" {
			summary = " " + v.Mode + ", " + v.Driver
		}
		summary += fmt.Sprintf("  %.1f of %d GPUs busy  %s req/s  %d waiting", busyGPUs, len(s.state.GPUs), decimal(rate), queued)
	}
	switch {
	case s.lost != nil && s.state != nil:
		text := fmt.Sprintf("no connection for %.0f s", s.now().Sub(s.lostAt).Seconds())
		right = s.styles.tones[bad].Bold(true).Render(text)
	case s.lost != nil:
		right = s.styles.tones[bad].Render("no connection")
	case s.state == nil:
		right = ""
	case !s.state.Health.OK:
		right = s.styles.tones[bad].Render("not ready")
	}
	room := s.width - lipgloss.Width(left) - lipgloss.Width(right) - 1
	if room < 0 {
		return right
	}
	return left + fit(summary, room, false) + " " + right
}

// bar is the tabs, and the filter.
func (s *Screen) bar() string {
	var parts []string
	for t := range tabs {
		name := fmt.Sprintf(" %d %s ", t+1, t)
		if t == s.tab {
			name = s.styles.tab.Render(name)
		}
		parts = append(parts, name)
	}
	line := strings.Join(parts, "")
	switch {
	case s.open != "" && s.state != nil:
		heading, _, _ := detail(s.state, s.tab, s.open)
		line += "  " + s.styles.title.Render(output.Clean(heading))
	case s.typing:
		line += "  /" + output.Clean(s.filter) + "█"
	case s.filter != "":
		line += "  " + s.styles.tones[warn].Render("/"+output.Clean(s.filter))
	}
	return line
}

// bottom is the line of help, or what is wrong with the connection.
func (s *Screen) bottom() string {
	text := "q quit  tab lists  ↑↓ select  enter detail  s sort  r reverse  / filter  ? help"
	switch {
	case s.lost != nil && s.state != nil:
		return s.styles.tones[bad].Render(fit("What is shown is old. Trying again: "+s.lost.Error(), s.width, false))
	case s.state != nil && !s.state.Health.OK && !s.help && s.open == "" && !s.typing:
		return s.styles.tones[bad].Render(fit("Conch is not ready: "+unready(s.state.Health), s.width, false))
	case s.help:
		text = "any key goes back"
	case s.open != "":
		text = "esc back  ↑↓ scroll"
	case s.typing:
		text = "enter keep  esc show all"
	}
	return s.styles.tones[soft].Render(fit(text, s.width, false))
}

// unready is why a conch is not ready.
func unready(h api.Health) string {
	var why []string
	for _, c := range h.Checks {
		if !c.OK {
			why = append(why, c.Reason)
		}
	}
	return strings.Join(why, "; ")
}

const helpText = `Keys
  1 2 3 4, tab, ← →     models, GPUs, waiting, events
  ↑ ↓ j k, PgUp PgDn    select a row;  g G  the first, the last
  enter                 all about the row;  esc  back
  s <                   order by the next, the previous column;  r  reverse
  /                     show rows that contain a text;  esc  all
  q, Ctrl-C             quit

Figures are over conch's statistics window. The small bars are the last ten
seconds. BAD requests were late, dropped, refused, failed, or given up at their
caller's gRPC deadline; ! is above the 1% up to which a rate is held. WAIT is
how many requests wait, OLDEST for how long, SLACK the time until the next batch
must start. Shares are parts of a GPU: ████░░░░ 50%. LAST HOUR has a block for
five minutes: █ 99% in time or more, a step less for each percent, · nothing
measured.

tritonctl top --once -o json writes the same state for programs.`
