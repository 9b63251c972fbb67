// Package tasks is the reference MCP server, which keeps a list of tasks, for
// demonstrations and tests. It uses the official Go SDK; hosts without this package do
// not link the SDK's package mcp.
package tasks

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"ahprelay/agenthost"
)

// appMIMEType is the MIME type of MCP Apps (SEP-1865).
const appMIMEType = "text/html;profile=mcp-app"

//go:embed mcpapp/board.html
var mcpAppFiles embed.FS

// A taskServer is an MCP server with a list of tasks, built with the official SDK. It
// works with any transport.
type taskServer struct {
	*mcp.Server

	mu     sync.Mutex // guards the fields below
	tasks  []string
	logged []string // notifications/message from clients
}

// Bounds on a server's data.
const (
	maxTasks  = 100
	maxLogged = 100
)

// taskList is the result of the task tools.
type taskList struct {
	Tasks []string `json:"tasks"`
}

// newTaskServer returns a server with these apps and its board.
func newTaskServer(apps []agenthost.MCPApp) *taskServer {
	s := &taskServer{
		Server: mcp.NewServer(&mcp.Implementation{Name: "tasks", Title: "Tasks", Version: "1.0.0"}, nil),
		tasks:  []string{"Read the report", "Answer Ada"},
	}
	board, err := mcpAppFiles.ReadFile("mcpapp/board.html")
	if err != nil {
		panic(err) // the file is embedded
	}
	s.addTools()
	s.addResources()
	s.addApp(agenthost.MCPApp{Name: "board", HTML: string(board), Meta: map[string]any{"ui": map[string]any{"prefersBorder": true}}}, "Task board")
	for _, app := range apps {
		s.addApp(app, app.Name)
	}
	return s
}

// Serve serves the server, with the given apps and its board, to one client: one message
// per line, until r ends or ctx ends. Programs for [agenthost.MCPStdio] call it.
func Serve(ctx context.Context, r io.ReadCloser, w io.WriteCloser, apps ...agenthost.MCPApp) error {
	server := newTaskServer(apps)
	err := server.Run(ctx, logTransport{&mcp.IOTransport{Reader: r, Writer: w}, server})
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return nil
	}
	return err
}

// endTime is how long a server process may run after its input has ended.
const endTime = 2 * time.Second

// Connect implements [agenthost.Config.ConnectMCP]. It runs the server in this process,
// or starts the configured command.
func Connect(ctx context.Context, m *agenthost.MCPServer) (conn agenthost.MCPConn, stop func(), err error) {
	if m.Transport == agenthost.MCPStdio {
		cmd := exec.Command(m.Command[0], m.Command[1:]...)
		conn, err = (&mcp.CommandTransport{Command: cmd, TerminateDuration: endTime}).Connect(ctx)
		return conn, func() {}, err // Close waits for the process
	}
	server, client := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = Serve(context.WithoutCancel(ctx), server, server, m.Apps...) // only the end matters
	}()
	conn, err = (&mcp.IOTransport{Reader: client, Writer: client}).Connect(ctx)
	return conn, func() { <-ended }, err
}

func (s *taskServer) addTools() {
	type text struct {
		Text string `json:"text" jsonschema:"what is to be done"`
	}
	mcp.AddTool(s.Server, &mcp.Tool{Name: "add_task", Title: "Add a task", Description: "Adds a task to the list."},
		func(_ context.Context, _ *mcp.CallToolRequest, in text) (*mcp.CallToolResult, taskList, error) {
			return nil, s.add(in.Text), nil
		})
	mcp.AddTool(s.Server, &mcp.Tool{Name: "list_tasks", Title: "List tasks", Description: "Lists all tasks."},
		func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, taskList, error) {
			return nil, s.list(), nil
		})
	mcp.AddTool(s.Server, &mcp.Tool{Name: "count", Title: "Count", Description: "Counts slowly, and tells how far it is."}, s.count)
	mcp.AddTool(s.Server, &mcp.Tool{Name: "fail", Title: "Fail", Description: "Fails."},
		func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return nil, nil, errors.New("this tool always fails")
		})
	mcp.AddTool(s.Server, &mcp.Tool{Name: "publish", Title: "Publish the tasks", Description: "Publishes the list of tasks. Wants the scope tasks.publish.",
		Meta: mcp.Meta{agenthost.ScopeMeta: "tasks.publish"}},
		func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return said("Published %d tasks.", len(s.list().Tasks)), nil, nil
		})
	mcp.AddTool(s.Server, &mcp.Tool{Name: "grow", Title: "Grow", Description: "Gives the server another tool, and another resource."}, s.grow)
	mcp.AddTool(s.Server, &mcp.Tool{Name: "read_log", Title: "Read the log", Description: "Returns the lines that clients have logged.",
		Meta: visibleTo("app")},
		func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return said("%s", strings.Join(s.logged, "\n")), nil, nil
		})
	mcp.AddTool(s.Server, &mcp.Tool{Name: "secret", Title: "Secret", Description: "Is for the model only, and not for apps.",
		Meta: visibleTo("model")},
		func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return said("The model may know this."), nil, nil
		})
}

func visibleTo(who string) mcp.Meta {
	return mcp.Meta{"ui": map[string]any{"visibility": []string{who}}}
}

func said(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

func (s *taskServer) add(text string) taskList {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tasks) < maxTasks {
		s.tasks = append(s.tasks, text)
	}
	return taskList{slices.Clone(s.tasks)}
}

func (s *taskServer) list() taskList {
	s.mu.Lock()
	defer s.mu.Unlock()
	return taskList{slices.Clone(s.tasks)}
}

type countInput struct {
	To    int `json:"to" jsonschema:"how far to count, 1 to 1000"`
	Pause int `json:"pause,omitempty" jsonschema:"milliseconds between the numbers"`
}

// count reports progress and stops when cancelled.
func (s *taskServer) count(ctx context.Context, req *mcp.CallToolRequest, in countInput) (*mcp.CallToolResult, any, error) {
	to := min(max(in.To, 1), 1000)
	for i := range to {
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(time.Duration(min(max(in.Pause, 0), 60_000)) * time.Millisecond):
		}
		if token := req.Params.GetProgressToken(); token != nil {
			err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				ProgressToken: token, Progress: float64(i + 1), Total: float64(to), Message: fmt.Sprintf("%d of %d", i+1, to),
			})
			if err != nil {
				return nil, nil, err
			}
		}
	}
	return said("Counted to %d.", to), nil, nil
}

// grow adds a tool and a resource, and notifies subscribers that both lists have changed.
func (s *taskServer) grow(_ context.Context, _ *mcp.CallToolRequest, in struct {
	Name string `json:"name" jsonschema:"of the new tool"`
}) (*mcp.CallToolResult, any, error) {
	if in.Name == "" || strings.ContainsAny(in.Name, " /") || len(in.Name) > 32 {
		return nil, nil, fmt.Errorf("not a name for a tool: %q", in.Name)
	}
	mcp.AddTool(s.Server, &mcp.Tool{Name: in.Name, Description: "Came later."},
		func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return said("I am %s.", in.Name), nil, nil
		})
	s.AddResource(&mcp.Resource{Name: in.Name, URI: "tasks://late/" + in.Name, MIMEType: "text/plain"}, textResource("text/plain", "I am "+in.Name+"."))
	return said("There is a tool %s now.", in.Name), nil, nil
}

// A logMessage is the payload of a client's notifications/message.
type logMessage struct {
	Level string          `json:"level"`
	Data  json.RawMessage `json:"data"`
}

// A logTransport passes notifications/message from clients to the server. MCP and its SDK
// define this notification from server to client only; MCP Apps use it in both
// directions.
type logTransport struct {
	mcp.Transport
	server *taskServer
}

// Connect implements [mcp.Transport].
func (t logTransport) Connect(ctx context.Context) (mcp.Connection, error) {
	conn, err := t.Transport.Connect(ctx)
	return logConnection{conn, t.server}, err
}

type logConnection struct {
	mcp.Connection
	server *taskServer
}

// Read implements [mcp.Connection].
func (c logConnection) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		msg, err := c.Connection.Read(ctx)
		req, ok := msg.(*jsonrpc.Request)
		if err != nil || !ok || req.IsCall() || req.Method != "notifications/message" {
			return msg, err
		}
		c.server.log(req.Params)
	}
}

func (s *taskServer) log(params json.RawMessage) {
	var said logMessage
	if json.Unmarshal(params, &said) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.logged) < maxLogged {
		s.logged = append(s.logged, said.Level+": "+string(said.Data))
	}
}

func (s *taskServer) addResources() {
	s.AddResource(&mcp.Resource{Name: "about", URI: "tasks://about", MIMEType: "text/plain", Description: "What this server is."},
		textResource("text/plain", "A list of tasks that exists in a demonstration only."))
	s.AddResource(&mcp.Resource{Name: "dot", URI: "tasks://dot", MIMEType: "image/gif"},
		func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: req.Params.URI, MIMEType: "image/gif", Blob: []byte(dot)}}}, nil
		})
	s.AddResourceTemplate(&mcp.ResourceTemplate{Name: "task", URITemplate: "tasks://task/{number}", MIMEType: "text/plain", Description: "One of the tasks."},
		func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			var n int
			tasks := s.list().Tasks
			if _, err := fmt.Sscanf(req.Params.URI, "tasks://task/%d", &n); err != nil || n < 1 || n > len(tasks) {
				return nil, mcp.ResourceNotFoundError(req.Params.URI)
			}
			return textContents(req.Params.URI, "text/plain", tasks[n-1], nil), nil
		})
}

const dot = "GIF89a\x01\x00\x01\x00\x80\x00\x00\x0f\x76\x6e\x00\x00\x00!\xf9\x04\x00\x00\x00\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"

func textResource(mimeType, text string) mcp.ResourceHandler {
	return func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return textContents(req.Params.URI, mimeType, text, nil), nil
	}
}

func textContents(uri, mimeType, text string, meta mcp.Meta) *mcp.ReadResourceResult {
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: mimeType, Text: text, Meta: meta}}}
}

// addApp adds a user interface and its tool.
func (s *taskServer) addApp(app agenthost.MCPApp, title string) {
	uri := "ui://tasks/" + app.Name
	s.AddResource(&mcp.Resource{Name: app.Name, Title: title, URI: uri, MIMEType: appMIMEType, Meta: app.Meta},
		func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return textContents(uri, appMIMEType, app.HTML, app.Meta), nil
		})
	s.AddTool(&mcp.Tool{
		Name: "show_" + app.Name, Title: title, Description: "Shows the tasks in a user interface.",
		InputSchema: &jsonschema.Schema{Type: "object"},
		Meta:        mcp.Meta{"ui": map[string]any{"resourceUri": uri}},
	}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		list := s.list()
		result := said("%d tasks: %s", len(list.Tasks), strings.Join(list.Tasks, ", "))
		result.StructuredContent = list
		return result, nil
	})
}
