"""A chat and a file, by the client that openapi-python-client generates."""

import io
import sys

from chatelaine_client import AuthenticatedClient
from chatelaine_client.api.attachments import attachments_create, attachments_get
from chatelaine_client.api.conversations import conversations_create, conversations_messages, conversations_post
from chatelaine_client.models import (
    Accepted,
    Attachment,
    AttachmentsCreateFilesBody,
    Conversation,
    ConversationRequest,
    MessagePage,
    MessageRequest,
    PartAttachment,
    PartText,
)
from chatelaine_client.types import File

url, token = sys.argv[1:]
with AuthenticatedClient(base_url=url, token=token) as client:
    chat = conversations_create.sync(client=client, body=ConversationRequest(agent="bank"))
    assert isinstance(chat, Conversation), chat
    sent = File(payload=io.BytesIO(b"Some notes."), file_name="notes.txt", mime_type="text/plain")
    for body in [sent, AttachmentsCreateFilesBody(file=sent)]:
        sent.payload.seek(0)
        kept = attachments_create.sync(chat.id, client=client, body=body, name="notes.txt")
        assert isinstance(kept, Attachment) and kept.name == "notes.txt" and kept.size == 11, kept
    read = attachments_get.sync(chat.id, kept.id, client=client)
    assert isinstance(read, File) and read.payload.read() == b"Some notes.", read
    posted = conversations_post.sync(chat.id, client=client, body=MessageRequest(text="What is it?", attachments=[kept.id]))
    assert isinstance(posted, Accepted), posted
    page = conversations_messages.sync(chat.id, client=client, after=0)
    assert isinstance(page, MessagePage), page
    parts = [part for message in page.items for part in message.parts]
    assert any(isinstance(part, PartText) and part.text == "What is it?" for part in parts), parts
    assert any(isinstance(part, PartAttachment) and part.id == kept.id for part in parts), parts
    refused = conversations_create.sync(client=client, body=ConversationRequest(agent="nobody"))
    assert refused.code.value == "not_found", refused
print("python: a message and a file")
