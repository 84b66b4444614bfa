"""A chat and a file, by the client that openapi-python-client generates."""

import io
import sys

from chatelaine_client import AuthenticatedClient
from chatelaine_client.api.attachments import create_attachment, get_attachment
from chatelaine_client.api.conversations import create_conversation, list_messages, post_message
from chatelaine_client.models import (
    Accepted,
    Attachment,
    CreateAttachmentFilesBody,
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
    chat = create_conversation.sync(client=client, body=ConversationRequest(agent="bank"))
    assert isinstance(chat, Conversation), chat
    sent = File(payload=io.BytesIO(b"Some notes."), file_name="notes.txt", mime_type="text/plain")
    for body in [sent, CreateAttachmentFilesBody(file=sent)]:
        sent.payload.seek(0)
        kept = create_attachment.sync(chat.id, client=client, body=body, name="notes.txt")
        assert isinstance(kept, Attachment) and kept.name == "notes.txt" and kept.size == 11, kept
    read = get_attachment.sync(chat.id, kept.id, client=client)
    assert isinstance(read, File) and read.payload.read() == b"Some notes.", read
    posted = post_message.sync(chat.id, client=client, body=MessageRequest(text="What is it?", attachments=[kept.id]))
    assert isinstance(posted, Accepted), posted
    page = list_messages.sync(chat.id, client=client, after=0)
    assert isinstance(page, MessagePage), page
    parts = [part for message in page.items for part in message.parts]
    assert any(isinstance(part, PartText) and part.text == "What is it?" for part in parts), parts
    assert any(isinstance(part, PartAttachment) and part.id == kept.id for part in parts), parts
    refused = create_conversation.sync(client=client, body=ConversationRequest(agent="nobody"))
    assert refused.code.value == "not_found", refused
print("python: a message and a file")
