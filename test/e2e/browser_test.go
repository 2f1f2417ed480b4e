package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// browser is a Chromium without a window. It is driven by its DevTools protocol over two pipes: JSON messages, each ended by a NUL.
type browser struct {
	*testing.T
	commands *os.File
	events   *os.File
	messages *bufio.Reader
	session  string
	calls    int
	loaded   bool
	ran      []string // what scripts of the page were seen to do
}

// openPage is what a browser has made of a page.
type openPage struct {
	Title      string   `json:"title"`
	Heading    string   `json:"heading"`
	Cells      []string `json:"cells"` // the text of each cell of its tables
	Tags       []string `json:"tags"`  // of all elements, each once
	Attributes []string `json:"attributes"`
	Links      []string `json:"links"`
	End        string   `json:"end"` // the last element's text
}

const lookAtPage = `(() => {
	const all = [...document.querySelectorAll('*')];
	const once = (list) => [...new Set(list)].sort();
	return {
		title: document.title, heading: document.querySelector('h1')?.textContent, cells: [...document.querySelectorAll('td')].map((e) => e.textContent), tags: once(all.map((e) => e.localName)),
		attributes: once(all.flatMap((e) => e.getAttributeNames())), links: [...document.querySelectorAll('a')].map((e) => e.getAttribute('href')),
		end: document.body.lastElementChild?.textContent,
	};
})()`

// newBrowser starts a browser that ends with the test; the test is skipped where there is none. Whatever a page forbids to scripts, the
// browser lets them: what keeps names from being scripts is to be the page's text alone.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Skip("no Chromium is here to open the pages: Debian's package is chromium")
	}
	commandsOut, commands, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	events, eventsIn, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{commandsOut, eventsIn} // 3 and 4
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	commandsOut.Close()
	eventsIn.Close()
	b := &browser{T: t, commands: commands, events: events, messages: bufio.NewReader(events)}
	t.Cleanup(func() {
		commands.Close() // which ends it
		kill := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		_ = cmd.Wait() // how it ends is its own affair
		events.Close()
	})
	var target struct {
		ID string `json:"targetId"`
	}
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct {
		Session string `json:"sessionId"`
	}
	b.call("Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &attached)
	b.session = attached.Session
	for _, method := range []string{"Page.enable", "Runtime.enable"} {
		b.call(method, nil, nil)
	}
	b.call("Page.setBypassCSP", map[string]any{"enabled": true}, nil)
	return b
}

type browserMessage struct {
	ID     int             `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// send asks the browser for something, whose answer take will see.
func (b *browser) send(method string, params any) int {
	b.Helper()
	b.calls++
	text, err := json.Marshal(struct {
		ID      int    `json:"id"`
		Method  string `json:"method"`
		Params  any    `json:"params,omitempty"`
		Session string `json:"sessionId,omitempty"`
	}{b.calls, method, params, b.session})
	if err == nil {
		_, err = b.commands.Write(append(text, 0))
	}
	if err != nil {
		b.Fatalf("%s: %v", method, err)
	}
	return b.calls
}

// take reads one message and notes what it tells.
func (b *browser) take() (m browserMessage) {
	b.Helper()
	err := b.events.SetReadDeadline(time.Now().Add(time.Minute))
	var text []byte
	if err == nil {
		text, err = b.messages.ReadBytes(0)
	}
	if err == nil {
		err = json.Unmarshal(text[:len(text)-1], &m)
	}
	if err != nil {
		b.Fatalf("the browser: %v", err)
	}
	switch m.Method {
	case "Page.loadEventFired":
		b.loaded = true
	case "Page.javascriptDialogOpening":
		b.send("Page.handleJavaScriptDialog", map[string]any{"accept": true})
		fallthrough
	case "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Page.windowOpen", "Page.frameAttached":
		b.ran = append(b.ran, m.Method+" "+string(m.Params))
	}
	return m
}

// call asks the browser for something and waits for the answer.
func (b *browser) call(method string, params, result any) {
	b.Helper()
	id := b.send(method, params)
	m := b.take()
	for m.ID != id {
		m = b.take()
	}
	var err error
	switch {
	case m.Error != nil:
		err = errors.New(m.Error.Message)
	case result != nil:
		err = json.Unmarshal(m.Result, result)
	}
	if err != nil {
		b.Fatalf("%s: %v", method, err)
	}
}

// open loads a page.
func (b *browser) open(url string) openPage {
	b.Helper()
	b.loaded, b.ran = false, nil
	var navigated struct {
		Error string `json:"errorText"`
	}
	b.call("Page.navigate", map[string]any{"url": url}, &navigated)
	if navigated.Error != "" {
		b.Fatalf("%s: %s", url, navigated.Error)
	}
	for !b.loaded {
		b.take()
	}
	var evaluated struct {
		Result struct {
			Value openPage `json:"value"`
		} `json:"result"`
	}
	b.call("Runtime.evaluate", map[string]any{"expression": lookAtPage, "returnByValue": true}, &evaluated)
	return evaluated.Result.Value
}

// wantPlain opens a page and shows that it is whole, has nothing on it but what our pages are made of, and ran no script.
func (b *browser) wantPlain(url, title, end string) openPage {
	b.Helper()
	p := b.open(url)
	// A browser's title has white space for control characters, none at its ends, and no two in a row.
	if want := strings.Join(strings.FieldsFunc(title, func(r rune) bool { return r <= ' ' || r == 0x7f }), " "); p.Title != want || p.Heading != shown(title) {
		b.Errorf("%s: the title is %q and the heading %q, want %q", url, p.Title, p.Heading, title)
	}
	made := map[string][]string{
		"element":   {"a", "body", "h1", "h2", "head", "html", "meta", "p", "style", "table", "tbody", "td", "th", "thead", "title", "tr"},
		"attribute": {"charset", "class", "content", "href", "lang", "name"},
	}
	for what, list := range map[string][]string{"element": p.Tags, "attribute": p.Attributes} {
		for _, name := range list {
			if !slices.Contains(made[what], name) {
				b.Errorf("%s: there is the %s %q", url, what, name)
			}
		}
	}
	for _, link := range p.Links {
		if !strings.HasPrefix(link, "/") && !strings.HasPrefix(link, "http://127.0.0.1:") {
			b.Errorf("%s: there is a link to %q", url, link)
		}
	}
	if len(b.ran) > 0 || !strings.HasSuffix(p.End, end) {
		b.Errorf("%s: scripts did %q; its end is %.200q", url, b.ran, p.End)
	}
	return p
}

// shown is a text as a page has it: one that is read from HTML has no carriage returns.
func shown(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
}
