// A chat and a file, by the client that OpenAPI Generator writes for Java.
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.openapitools.client.ApiClient;
import org.openapitools.client.api.AttachmentsApi;
import org.openapitools.client.api.ConversationsApi;
import org.openapitools.client.model.ConversationRequest;
import org.openapitools.client.model.MessageRequest;
import org.openapitools.client.model.PartAttachment;
import org.openapitools.client.model.PartText;

public class Client {
  public static void main(String[] args) throws Exception {
    var client = new ApiClient();
    client.updateBaseUri(args[0]);
    client.setRequestInterceptor(request -> request.header("Authorization", "Bearer " + args[1]));
    var conversations = new ConversationsApi(client);

    var chat = conversations.createConversation(new ConversationRequest().agent("bank"), null);
    var file = Path.of("notes.txt");
    Files.writeString(file, "Some notes.");
    var kept = new AttachmentsApi(client).createAttachment(chat.getId(), file.toFile(), "notes.txt", null);
    if (kept.getSize() != 11) throw new AssertionError(kept);

    var message = new MessageRequest().text("What is it?").attachments(List.of(kept.getId()));
    conversations.postMessage(chat.getId(), message, null);
    var page = conversations.listMessages(chat.getId(), null, 0L, null, null, null);
    var parts = page.getItems().stream().flatMap(one -> one.getParts().stream()).map(part -> part.getActualInstance()).toList();
    var said = parts.stream().anyMatch(part -> part instanceof PartText text && text.getText().equals("What is it?"));
    var shown = parts.stream().anyMatch(part -> part instanceof PartAttachment one && one.getId().equals(kept.getId()));
    if (!said || !shown) throw new AssertionError(parts);
    System.out.println("java: a message and a file");
  }
}
