// A chat and a file, by the client that OpenAPI Generator writes for Go.
package main

import (
	"context"
	"fmt"
	"os"

	chatelaine "example.org/chatelaine"
)

func must(err error, what string) {
	if err != nil {
		if open, ok := err.(*chatelaine.GenericOpenAPIError); ok {
			what += ": " + string(open.Body())
		}
		panic(fmt.Sprint(what, ": ", err))
	}
}

func main() {
	config := chatelaine.NewConfiguration()
	config.Servers = chatelaine.ServerConfigurations{{URL: os.Args[1]}}
	client := chatelaine.NewAPIClient(config)
	ctx := context.WithValue(context.Background(), chatelaine.ContextAccessToken, os.Args[2])

	wanted := chatelaine.NewConversationRequest()
	wanted.SetAgent("bank")
	chat, _, err := client.ConversationsAPI.CreateConversation(ctx).ConversationRequest(*wanted).Execute()
	must(err, "a conversation")

	must(os.WriteFile("notes.txt", []byte("Some notes."), 0o600), "a file")
	file, err := os.Open("notes.txt")
	must(err, "a file")
	kept, _, err := client.AttachmentsAPI.CreateAttachment(ctx, chat.Id).File(file).Name("notes.txt").Execute()
	must(err, "an upload")
	if kept.Size != 11 {
		panic(fmt.Sprint("a file of ", kept.Size, " bytes"))
	}

	message := chatelaine.NewMessageRequest()
	message.SetText("What is it?")
	message.SetAttachments([]string{kept.Id})
	_, _, err = client.ConversationsAPI.PostMessage(ctx, chat.Id).MessageRequest(*message).Execute()
	must(err, "a message")

	page, _, err := client.ConversationsAPI.ListMessages(ctx, chat.Id).After(0).Execute()
	must(err, "messages")
	said, shown := false, false
	for _, message := range page.Items {
		for _, part := range message.Parts {
			said = said || part.PartText != nil && part.PartText.Text == "What is it?"
			shown = shown || part.PartAttachment != nil && part.PartAttachment.Id == kept.Id
		}
	}
	if !said || !shown {
		panic(fmt.Sprint("said ", said, ", shown ", shown))
	}
	fmt.Println("go: a message and a file")
}
